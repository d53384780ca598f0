// Chooses the tiles of Hopper's forward kernel.
#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "plan/arch/sm90/sm90.h"
#include "plan/work.h"
#include "support/text.h"

namespace flexc::plan::sm90 {
namespace {

// Consumer warpgroups, keys of a tile, stages of queries, and overlap; best first. Three warpgroups
// share each load of keys if the output leaves them enough registers.
constexpr std::array kForwardShapes = {
    ForwardSchedule{3, 128, 2, true}, ForwardSchedule{3, 112, 2, true},
    ForwardSchedule{3, 96, 2, true},  ForwardSchedule{2, 128, 2, true},
    ForwardSchedule{2, 128, 1, true}, ForwardSchedule{2, 112, 1, true},
    ForwardSchedule{2, 96, 1, true},  ForwardSchedule{2, 80, 1, true},
    ForwardSchedule{2, 64, 1, true},  ForwardSchedule{2, 48, 1, true},
    ForwardSchedule{2, 64, 1, false}, ForwardSchedule{2, 48, 1, false},
};
// Shapes for a 2-D key index, best first. The values that repeat from row to row leave three
// warpgroups registers for short tiles only.
constexpr std::array kIndex2dShapes = {
    ForwardSchedule{3, 64, 2, true},  ForwardSchedule{2, 128, 2, true},
    ForwardSchedule{2, 128, 1, true}, ForwardSchedule{2, 112, 2, true},
    ForwardSchedule{2, 112, 1, true}, ForwardSchedule{2, 96, 1, true},
    ForwardSchedule{2, 80, 1, true},  ForwardSchedule{2, 64, 1, true},
    ForwardSchedule{2, 48, 1, true},
};
constexpr int kForwardStages = 2;
constexpr int kMostPolynomials = 4;
constexpr int kLeastStep = 16; // in keys: the difference of neighbouring tile sizes

// How a kernel handles the reads of a score mod.
enum class Reads : std::uint8_t {
    plain,
    by_index_2d,
    by_kinds,
    from_aligned_tables,
    from_tables,
    with_shifts,
    beside_copies
};

// A kernel for a request: how its blocks divide their work, and how it handles reads.
struct Choice {
    const KernelRequest& request;
    ForwardSchedule shape;
    Reads reads;
};

int bias_bytes_of(const KernelRequest& request, Reads reads) {
    switch (reads) {
    case Reads::by_kinds: return 0;
    case Reads::from_aligned_tables: return 0; // these have no dense bias in addition
    case Reads::from_tables: return request.terms.with_tables.bias_bytes;
    case Reads::with_shifts: return 0; // a dense bias is one of the shifted reads
    case Reads::plain:
    case Reads::by_index_2d:
    case Reads::beside_copies: break;
    }
    return request.terms.plain.bias_bytes;
}

const passes::TabulatedValues& tabulated_of(const KernelRequest& request, Reads reads) {
    switch (reads) {
    case Reads::by_index_2d: return request.terms.by_index_2d.tabulated;
    case Reads::by_kinds: return request.terms.by_kinds.tabulated;
    case Reads::from_aligned_tables: return request.terms.with_aligned_tables.tabulated;
    case Reads::from_tables: return request.terms.with_tables.tabulated;
    case Reads::with_shifts: return request.terms.with_shifts.front().tabulated;
    case Reads::plain:
    case Reads::beside_copies: break;
    }
    return request.terms.plain.tabulated;
}

// Whether TMA loads rows of so many columns slowly, because they are not whole sectors of memory.
// For narrow heads, threads that copy them would cost a third warpgroup, which is worse; for the
// widest, the products take longer than either kind of load.
bool has_slow_rows(int columns) {
    constexpr int kSectorColumns = 16, kFirst = 104, kLast = 200;
    return columns >= kFirst && columns <= kLast && columns % kSectorColumns != 0;
}

// Returns why threads copy keys and values; empty if TMA loads them. Whatever else is staged needs
// the same threads, or TMA.
std::string why_copied(const KernelRequest& request) {
    if (!request.sequences.scattered_in.empty())
        return formatted("they lie in {}", request.sequences.scattered_in);
    const bool stages_nothing =
        request.terms.plain.bias_bytes == 0 && request.terms.with_shifts.empty() &&
        request.terms.with_tables.entries.empty() && request.terms.by_index_2d.keys.width == 0 &&
        !request.terms.plain.tabulated.any();
    if (stages_nothing && (has_slow_rows(request.head_dim) || has_slow_rows(request.head_dim_v)))
        return "rows are no whole sectors of memory";
    return "";
}

// Whether MMAs add the addends by row of the 2-D key index together with the products. Tiles must
// be single rows, so that an infinite addend is not multiplied by 0, and the type must have the
// range of floats (bf16).
bool multiplies_index_2d_rows(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    const passes::KeyIndex2d& index_2d = request.terms.by_index_2d.keys;
    return reads == Reads::by_index_2d && index_2d.quotients && index_2d.adds_to_products &&
           shape.key_tile == index_2d.width && request.dtype == DType::bf16;
}

bool is_wide(const KernelRequest& request) {
    return std::max(request.head_dim, request.head_dim_v) > 128;
}

// What comes with the products where accumulators start with what elements add.
passes::BesideElements beside_elements(const KernelRequest& request, Reads reads) {
    switch (reads) {
    case Reads::plain: return request.terms.plain.beside_bias;
    case Reads::from_aligned_tables: return request.terms.with_aligned_tables.beside;
    case Reads::with_shifts: return request.terms.with_shifts.front().beside;
    case Reads::by_index_2d:
    case Reads::by_kinds:
    case Reads::from_tables:
    case Reads::beside_copies: break;
    }
    return {};
}

// Whether MMAs add what is added by key together with the products. Those of wide heads take so
// long that nothing is gained where elements add nothing, and tiles would be shorter.
bool multiplies_key_addend(const KernelRequest& request, Reads reads) {
    if (reads != Reads::plain) return beside_elements(request, reads).keys;
    return request.terms.plain.multiplies_key_addend && !is_wide(request);
}
// Whether the loop over keys is that of no score mod: products bring all that is added but for
// rows, whose addends are offsets of exponents.
bool adds_keys_alone(const KernelRequest& request, Reads reads) {
    if (request.terms.plain.multiplies_key_addend && !multiplies_key_addend(request, reads))
        return false;
    return request.terms.plain.adds_keys_alone &&
           (reads == Reads::plain || reads == Reads::beside_copies);
}

// Whether keys are visited from the largest addend down. A block mask has an order of its own, and
// a request's keys must start with the tile in which they end.
bool starts_at_highest(const KernelRequest& request, Reads reads) {
    return request.terms.plain.adds_by_position && reads == Reads::plain &&
           !request.mask.has_block_mask && !request.sequences.is_ragged &&
           request.sequences.scattered_in.empty();
}

// Whether MMAs add what grows from key to key together with the products.
bool multiplies_slope(const KernelRequest& request, Reads reads) {
    if (const auto beside = beside_elements(request, reads); beside.starts) return beside.slope;
    return request.terms.plain.can_multiply_slope && starts_at_highest(request, reads) &&
           !is_wide(request);
}

// Whether accumulators start with a function of the distance. Reading it takes shared memory longer
// than pairs for elements do, which is less than what elements save where products are short.
bool starts_with_distances(const KernelRequest& request, Reads reads) {
    constexpr int kWidest = 64;
    return request.terms.plain.can_start_with_distances && starts_at_highest(request, reads) &&
           std::max(request.head_dim, request.head_dim_v) <= kWidest;
}

// Returns the tabulated values that are staged for elements to read.
passes::TabulatedValues staged_values(const KernelRequest& request, Reads reads) {
    passes::TabulatedValues staged = tabulated_of(request, reads);
    staged.keys -= multiplies_key_addend(request, reads) ? 1 : 0;
    if (reads == Reads::plain) staged.keys -= request.terms.plain.row_key_products;
    return staged;
}

int shifted_bytes(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    if (reads != Reads::with_shifts) return 0;
    int bytes = 0;
    for (const ShiftedTile& tile : request.terms.with_shifts.front().tiles) {
        const int queries = 64 * shape.consumers, keys = shape.key_tile;
        bytes += ::sm90::shifted_tile_layout(tile.by_key ? keys : queries,
                                             tile.by_key ? queries : keys, tile.element_bytes)
                     .bytes;
    }
    return bytes;
}

int shifted_end_bytes(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    if (reads != Reads::with_shifts || !request.terms.with_shifts.front().have_ends) return 0;
    int bytes = 0;
    for (const ShiftedTile& tile : request.terms.with_shifts.front().tiles)
        bytes += ::sm90::shifted_end_bytes(tile.by_key ? shape.key_tile : 64 * shape.consumers);
    return bytes;
}

// Returns the columns that so many kinds take. A step of the MMAs has two columns for each of eight
// kinds, or one for each of sixteen.
int kind_columns(int kinds) { return kinds <= 8 ? 8 : padded_columns(kinds); }

// Returns why the product QK does not include a program's kinds of keys; empty if it does, provided
// that tiles have room.
std::string why_no_kinds(const KernelRequest& request) {
    if (request.terms.by_kinds.are_of_pairs) return "each query has others";
    const int columns = 2 * kind_columns(request.terms.by_kinds.count);
    if (4 * columns > request.head_dim)
        return std::to_string(columns) + " columns for them are more than a quarter of queries'";
    if (request.terms.by_kinds.count > ::sm90::ForwardLayout::kMostKinds)
        return "there is room for " + std::to_string(::sm90::ForwardLayout::kMostKinds);
    return "";
}

::sm90::ForwardSizes sizes_without_tables(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    const passes::KeyIndex2d& index_2d = request.terms.by_index_2d.keys;
    const passes::TabulatedValues staged = staged_values(request, reads);
    const bool adds_rows = reads == Reads::by_index_2d && index_2d.quotients;
    const bool adds_kinds = reads == Reads::by_kinds, multiplies = why_no_kinds(request).empty();
    const bool copies_kinds = adds_kinds && !multiplies;
    ::sm90::ForwardSizes sizes = {
        .query_tile = 64 * shape.consumers,
        .key_tile = shape.key_tile,
        .head_dim = request.head_dim,
        .head_dim_v = request.head_dim_v,
        .query_stages = shape.query_stages,
        .stages = kForwardStages,
        .bias_bytes = bias_bytes_of(request, reads),
        .shifted_bytes = shifted_bytes(choice),
        .shifted_end_bytes = shifted_end_bytes(choice),
        .key_values = staged.keys,
        .distance_values = staged.distances,
        .starts_with_distances = starts_with_distances(request, reads),
        .index_2d_rows = adds_rows ? shape.key_tile / index_2d.width : 0,
        .multiplies_index_2d_rows = multiplies_index_2d_rows(choice),
        .multiplies_key_addend = multiplies_key_addend(request, reads),
        .multiplies_slope = multiplies_slope(request, reads),
        .row_key_products = reads == Reads::plain ? request.terms.plain.row_key_products : 0,
        .copies_keys = reads == Reads::beside_copies,
        .kind_columns = adds_kinds && multiplies ? kind_columns(request.terms.by_kinds.count) : 0,
        .kind_copies =
            copies_kinds && !request.terms.by_kinds.are_of_pairs ? request.terms.by_kinds.count : 0,
        .pair_kinds =
            copies_kinds && request.terms.by_kinds.are_of_pairs ? request.terms.by_kinds.count : 0};
    // Two stages, or one where two do not fit.
    const int limit = shared_memory_limit(request.arch);
    const auto with_stages = [&](int ::sm90::ForwardSizes::* stages) {
        sizes.*stages = 2;
        if (::sm90::forward_layout(sizes).bytes > limit) sizes.*stages = 1;
    };
    // Few tiles contain elements beyond the clamps.
    if (sizes.shifted_end_bytes != 0) with_stages(&::sm90::ForwardSizes::shifted_stages);
    if (sizes.pair_kinds != 0) {
        sizes.table_words =
            ::sm90::pair_kinds_layout(sizes.query_tile, sizes.key_tile, sizes.pair_kinds)
                .copy_words;
        with_stages(&::sm90::ForwardSizes::table_stages);
    }
    return sizes;
}

// Shared memory for slices of tables, in 4-byte words. With two stages, the slices of the next tile
// of queries fit too.
struct TableWords {
    int stages = 0;
    std::vector<int> of_tables;
    int sum() const { return std::accumulate(of_tables.begin(), of_tables.end(), 0); }
};

// Returns the words after the slices. Aligned tiles read past a slice; those values are unused, but
// the memory must belong to the block.
int words_behind(Reads reads) { return reads == Reads::from_aligned_tables ? 256 : 0; }

// Returns the memory for slices of tables; slices of known size are kept whole. Nothing if they do
// not fit.
std::optional<TableWords> table_words(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    // Words for a slice of unknown size. With fewer, most entries would be read from memory.
    constexpr int kMostWords = 4096, kLeastWords = 1024;
    const int room = (shared_memory_limit(request.arch) -
                      ::sm90::forward_layout(sizes_without_tables(choice)).bytes) /
                     static_cast<int>(sizeof(float));
    const auto words_of = [](std::int64_t entries) {
        return static_cast<int>(entries + 3) / 4 * 4;
    };
    int known = words_behind(reads), unknown = 0;
    for (const std::int64_t entries : request.terms.with_tables.entries) {
        known += words_of(entries);
        unknown += entries == 0;
    }
    for (const int stages : {2, 1}) {
        const int rest = room / stages - known;
        if (rest < unknown * kLeastWords) continue;
        TableWords words{stages, {}};
        const int words_of_unknown = std::min(rest / std::max(unknown, 1), kMostWords) / 4 * 4;
        for (const std::int64_t entries : request.terms.with_tables.entries)
            words.of_tables.push_back(entries != 0 ? words_of(entries) : words_of_unknown);
        return words;
    }
    return {};
}

bool stages_tables(Reads reads) {
    return reads == Reads::from_tables || reads == Reads::from_aligned_tables;
}

::sm90::ForwardSizes sizes_of(const Choice& choice) {
    ::sm90::ForwardSizes sizes = sizes_without_tables(choice);
    if (!stages_tables(choice.reads)) return sizes;
    const auto words = table_words(choice);
    sizes.table_words = words ? words->sum() + words_behind(choice.reads) : 0;
    sizes.table_stages = words ? words->stages : 0;
    return sizes;
}

int shared_bytes(const Choice& choice) { return ::sm90::forward_layout(sizes_of(choice)).bytes; }

// Returns the registers of a thread for the biases of its scores.
int biases(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    // Indices need no registers of their own: they are replaced by the entries that they name
    // before products are added.
    const bool stay = reads != Reads::from_tables || !request.terms.with_tables.copies_indices;
    return stay ? shape.key_tile / 2 * bias_bytes_of(request, reads) / 4 : 0;
}
// Returns the accumulators of a thread: scores, their biases, P of the previous tile, and the
// output.
int accumulators(const Choice& choice) {
    const ForwardSchedule& shape = choice.shape;
    const int weights = shape.overlaps ? shape.key_tile / 4 : 0;
    return shape.key_tile / 2 + biases(choice) + weights +
           padded_columns(choice.request.head_dim_v) / 2;
}
int accumulator_limit(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    if (shape.consumers == 3) return 128;
    const bool has_fewer = bias_bytes_of(request, reads) > 2 || reads == Reads::beside_copies;
    return has_fewer ? 180 : 192;
}

// Sums that are computed for some elements at once; none if their text is too long to be repeated
// for these.
ElementSums sums_of(const KernelRequest& request, Reads reads) {
    const ScoreTerms& terms = request.terms;
    const auto sums_with = [&] {
        switch (reads) {
        case Reads::by_index_2d: return terms.by_index_2d.sums;
        case Reads::by_kinds: return ElementSums{};
        case Reads::from_aligned_tables: return terms.with_aligned_tables.sums;
        case Reads::from_tables: return terms.with_tables.sums;
        case Reads::with_shifts: return terms.with_shifts.front().sums;
        case Reads::plain:
        case Reads::beside_copies: break;
        }
        return terms.plain.sums;
    };
    const ElementSums sums = sums_with();
    return sums.is_long ? ElementSums{} : sums;
}

// Returns the registers that the loop over their terms takes for so many elements, of two rows.
int registers_of(const ElementSums& sums, int elements) {
    constexpr int kOfRead = 3, kRows = 2; // an address and a value
    return elements * (sums.count + sums.carried + kOfRead * sums.reads_of_elements) +
           elements / kRows * kOfRead * sums.reads_of_keys +
           kRows * kOfRead * sums.reads_of_queries;
}

// Returns how many elements have their sums computed at once: as many as have registers.
int sum_elements(const Choice& choice) {
    constexpr std::array kNumbers = {16, 8, 4};
    const auto& [request, shape, reads] = choice;
    const ElementSums sums = sums_of(request, reads);
    if (sums.count == 0) return 0;
    // Accumulators that start with biases are still scores of the next tile.
    const int freed = beside_elements(request, reads).starts ? biases(choice) : 0;
    const auto have_room = [&](int elements) {
        return accumulators(choice) - freed + registers_of(sums, elements) <=
               accumulator_limit(choice);
    };
    const auto* const most = std::ranges::find_if(kNumbers, have_room);
    return most == kNumbers.end() ? kNumbers.back() : *most;
}

bool suits(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    // With wider outputs, masks and mods spill or MMAs are serialised.
    constexpr int kWidestOfThree = 96;
    if (shape.consumers == 3 && padded_columns(request.head_dim_v) > kWidestOfThree) return false;
    const bool has_copiers = bias_bytes_of(request, reads) > 0 || reads == Reads::with_shifts ||
                             reads == Reads::beside_copies;
    // Nor have three warpgroups registers for what many elements bring into the terms of sums.
    const bool has_sums = sums_of(request, reads).count != 0;
    if ((has_copiers || has_sums) && shape.consumers == 3) return false;
    return accumulators(choice) <= accumulator_limit(choice) &&
           shared_bytes(choice) <= shared_memory_limit(request.arch);
}

// Whether flexc may choose the shape itself. With a block mask, three warpgroups are not chosen:
// their tiles visit more elements and leave too few registers for evaluating the mask.
bool is_chosen(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    return suits(choice) && (!request.mask.has_block_mask || shape.consumers != 3);
}

// Whether each tile is whole rows of the 2-D key index.
bool fits_index_2d(const KernelRequest& request, const ForwardSchedule& shape) {
    const int width = request.terms.by_index_2d.keys.width;
    return width > 0 && shape.key_tile % width == 0 && shape.key_tile % 16 == 0;
}
bool suits_index_2d(const KernelRequest& request, const ForwardSchedule& shape) {
    const passes::KeyIndex2d& index_2d = request.terms.by_index_2d.keys;
    if (!fits_index_2d(request, shape)) return false;
    // Elements would read from memory what tables in shared memory hold.
    if (request.terms.with_tables.element_reads < request.terms.by_index_2d.element_reads)
        return false;
    // Registers of a thread: a number for each row of the 2-D key index and each query, and the
    // values that repeat from row to row.
    const int rows = index_2d.quotients ? 2 * shape.key_tile / index_2d.width : 0;
    const int period = index_2d.remainders ? std::lcm(index_2d.width, 8) / 2 : 0;
    return suits({request, shape, Reads::by_index_2d}) &&
           accumulators({request, shape, Reads::by_index_2d}) + rows + period <=
               accumulator_limit({request, shape, Reads::by_index_2d});
}

bool starts_with_tables(const KernelRequest& request, Reads reads) {
    return reads == Reads::from_tables && request.terms.with_tables.can_start;
}

// Whether the softmax can compute powers of two by polynomials. It cannot with a 2-D key index,
// with kinds of keys, if keys start at the highest, if products are added to tables, or if they
// bring all that is added.
bool may_take_polynomials(const KernelRequest& request, Reads reads) {
    return request.work.of_score.special_functions != 0 && reads != Reads::by_index_2d &&
           reads != Reads::by_kinds && !starts_at_highest(request, reads) &&
           !starts_with_tables(request, reads) && !adds_keys_alone(request, reads);
}

// Returns for how many of eight columns the powers of two are polynomials: as many as relieve the
// special function unit while it remains the bottleneck. Cycles are for 32 scores on a quarter of a
// multiprocessor.
int polynomials(const KernelRequest& request, Reads reads) {
    constexpr int kSpecialCycles = 8, kSoftmaxCycles = 8;
    constexpr int kColumns = 8, kPolynomialCycles = 10;
    if (!may_take_polynomials(request, reads)) return 0;
    const int special = kSpecialCycles * (1 + request.work.of_score.special_functions);
    const int products = (request.head_dim + request.head_dim_v) / 16;
    const int issued = kSoftmaxCycles + request.work.of_score.instructions;
    int columns = 0;
    const auto gains = [&](int more) {
        const int rest = special - more * kSpecialCycles / kColumns;
        return rest >= products && rest >= issued + more * kPolynomialCycles / kColumns;
    };
    while (columns < kMostPolynomials && gains(columns + 1))
        ++columns;
    return columns;
}

// Returns the schedule with its ping-pong, polynomials and rescaling, as measured on an H200. With
// ping-pong of MMAs, one warpgroup reads values for elements while the other one waits.
ForwardSchedule with_ping_pong(const Choice& choice) {
    const KernelRequest& request = choice.request;
    const Reads reads = choice.reads;
    ForwardSchedule schedule = choice.shape;
    const bool wide = is_wide(request), narrow = schedule.consumers == 3;
    // In these cases the softmax is the one of no score mod.
    const bool adds_to_products =
        starts_at_highest(request, reads) ||
        (reads == Reads::by_kinds && request.terms.by_kinds.are_added_alone) ||
        (reads == Reads::from_aligned_tables && request.terms.with_aligned_tables.beside.starts) ||
        starts_with_tables(request, reads) || adds_keys_alone(request, reads);
    const bool has_own_terms =
        reads == Reads::by_kinds || reads == Reads::from_aligned_tables || reads == Reads::plain;
    const bool adds_terms =
        (has_own_terms ? staged_values(request, reads) : request.terms.plain.tabulated).any() &&
        !narrow && !adds_to_products;
    const bool has_score_mod = request.has_score_mod && !adds_to_products;
    const bool multiplies_little = !narrow && !has_score_mod && request.head_dim_v <= 64;
    schedule.ping_pong =
        !wide && (adds_terms || multiplies_little) ? PingPong::softmax : PingPong::mma;
    schedule.polynomials = polynomials(request, reads);
    const bool rescales_first = wide || (narrow && (reads == Reads::by_index_2d || !has_score_mod));
    schedule.rescales_after = rescales_first                              ? 0
                              : reads == Reads::by_index_2d || adds_terms ? 4
                                                                          : 8;
    return schedule;
}

// Describes for people how a kernel uses the program's kinds of keys.
std::string of_kinds(const KernelRequest& request, const ::sm90::ForwardSizes& sizes) {
    if (sizes.pair_kinds != 0)
        return formatted(", {} kinds of pairs of a query and a key, a copy of their addends for "
                         "each lane",
                         request.terms.by_kinds.count);
    if (request.terms.by_kinds.are_of_pairs) return "";
    const std::string kinds = std::to_string(request.terms.by_kinds.count) + " kinds of keys";
    if (sizes.kind_columns != 0)
        return ", products by " + kinds + " in " + std::to_string(2 * sizes.kind_columns) +
               " more columns";
    const std::string why = why_no_kinds(request);
    return (why.empty() ? "" : ", no products by " + kinds + ": " + why) +
           (sizes.kind_copies != 0 ? ", a copy of their addends for each thread" : "");
}

// Whether addends are computed for a few of a thread's elements at a time: if unrolled code would
// contain many reads, none of which is loaded for neighbouring elements together. With wide
// outputs, only if there is a copied bias; otherwise the generic kernel is faster.
bool computes_in_parts(const KernelRequest& request, Reads reads) {
    constexpr int kNarrow = 64;
    const bool has_room = request.head_dim_v <= kNarrow || bias_bytes_of(request, reads) > 0;
    return has_room && request.work.reads_much() && sums_of(request, reads).count == 0 &&
           (reads == Reads::plain || reads == Reads::from_tables) &&
           !staged_values(request, reads).any();
}

// Returns the number of keys from a tile's first key to the next tile's; 0 if tiles of this size
// are not aligned with tables.
int aligned_step(const KernelRequest& request, const ForwardSchedule& shape) {
    const auto tile = std::ranges::find(request.terms.with_aligned_tables.tiles, shape.key_tile,
                                        &AlignedTile::keys);
    return tile == request.terms.with_aligned_tables.tiles.end() ? 0 : tile->step;
}

Decomposition decomposition_of(const KernelRequest& request, Reads reads) {
    using enum Decomposition::Of;
    const ScoreTerms& terms = request.terms;
    switch (reads) {
    case Reads::by_index_2d: return {.of = by_index_2d, .key_width = terms.by_index_2d.keys.width};
    case Reads::by_kinds: return {.of = by_kinds};
    case Reads::from_aligned_tables: return {.of = with_aligned_tables};
    case Reads::from_tables: return {.of = with_tables};
    case Reads::with_shifts:
        return {.of = with_shifts,
                .shifted_reads = static_cast<int>(terms.with_shifts.front().tiles.size())};
    case Reads::plain:
    case Reads::beside_copies: break;
    }
    return {.of = plain};
}

KernelConfig configured(const Choice& choice) {
    const auto& [request, schedule, reads] = choice;
    KernelConfig config;
    config.kind = KernelKind::forward;
    config.family = kName;
    config.template_path = "forward_sm90.cu";
    config.entry = "flexc_forward_sm90";
    const ::sm90::ForwardSizes sizes = sizes_of(choice);
    config.block = {.query_tile = sizes.query_tile,
                    .key_tile = sizes.key_tile,
                    .warps = 4 * (schedule.consumers + 1),
                    .stages = sizes.stages,
                    .shared_bytes = ::sm90::forward_layout(sizes).bytes};
    config.schedule = schedule;
    config.decomposition = decomposition_of(request, reads);
    config.sum_elements = sum_elements(choice);
    Forward forward{.has_registers_for_columns =
                        schedule.consumers == 2 && !is_wide(request) &&
                        accumulators(choice) + schedule.key_tile / 4 <= 192,
                    .sizes = sizes,
                    .tabulated = tabulated_of(request, reads),
                    .key_step = schedule.key_tile};
    // The warps that copy biases can follow ranges of keys, but no block mask.
    config.has_block_mask =
        request.mask.has_block_mask && sizes.bias_bytes == 0 && sizes.shifted_bytes == 0;
    // In bytes. Reading element by element would take far longer than these spills. With aligned
    // tables, the values spilled first are needed only before and after the loop over keys.
    constexpr int kSpillsOfShifts = 64, kSpillsOfTables = 16;
    // Spills outside the loop, or in the warp that finds the order of keys, cost less than having a
    // warpgroup less.
    constexpr int kSpillsOutside = 8;
    const bool may_spill_little =
        reads == Reads::from_aligned_tables ||
        (reads == Reads::from_tables && request.terms.with_tables.computes_much());
    config.spills.tolerated =
        request.work.is_long          ? kSpillsOfLong
        : reads == Reads::with_shifts ? kSpillsOfShifts
        : may_spill_little            ? kSpillsOfTables
        : sizes.kind_copies != 0 || sizes.pair_kinds != 0 || starts_at_highest(request, reads)
            ? kSpillsOutside
            : 0;
    config.reason = "wgmma, " + std::to_string(schedule.consumers) + " warpgroups of 64 rows, " +
                    (schedule.overlaps ? "products under the softmax" : "products in order");
    if (request.terms.by_kinds.count != 0) config.reason += of_kinds(request, sizes);
    if (sizes.multiplies_key_addend) config.reason += ", addends of keys as columns of products";
    if (sizes.row_key_products != 0)
        config.reason += formatted(", products of rows and keys as columns of products: {}",
                                   sizes.row_key_products);
    if (sizes.starts_with_distances) config.reason += ", products added to functions of distance";
    if (sizes.multiplies_slope) config.reason += ", a slope as columns of products";
    if (stages_tables(reads)) {
        forward.table_words = table_words(choice)->of_tables;
        config.reason += ", tables in shared memory";
    }
    forward.starts_with_tables = starts_with_tables(request, reads);
    if (reads == Reads::from_aligned_tables) {
        forward.key_step = aligned_step(request, schedule);
        config.reason += ", which tiles of keys are aligned with";
        if (forward.key_step != schedule.key_tile)
            config.reason += ", " + std::to_string(forward.key_step) + " keys apart";
    }
    forward.computes_in_parts = computes_in_parts(request, reads);
    if (starts_at_highest(request, reads)) {
        forward.starts_at_highest = true;
        config.reason += ", keys first to which most is added";
    }
    if (reads == Reads::with_shifts) {
        config.reason +=
            formatted(", shifted reads by tiles: {}", config.decomposition.shifted_reads);
        if (sizes.shifted_end_bytes != 0) config.reason += ", beyond all clamps by lines";
    }
    if (reads == Reads::beside_copies) {
        config.reason += ", keys copied by threads: ";
        config.reason += why_copied(request);
    }
    if (config.sum_elements != 0)
        config.reason += formatted(", sums of {} elements at once", config.sum_elements);
    if (reads == Reads::by_index_2d)
        config.reason +=
            formatted(", a 2-D key index of {} columns", config.decomposition.key_width);
    config.of_family = std::move(forward);
    return config;
}

bool suits_kinds(const KernelRequest& request, const ForwardSchedule& shape) {
    // With three warpgroups, shorter tiles do not leave more registers for the other addends.
    if (shape.consumers == 3 && shape.key_tile != kForwardShapes.front().key_tile) return false;
    constexpr int kShortest = 64; // with shorter tiles, reads from tables are faster
    return request.terms.by_kinds.count != 0 && shape.key_tile >= kShortest &&
           suits({request, shape, Reads::by_kinds});
}

bool suits_tables(const KernelRequest& request, const ForwardSchedule& shape) {
    const TableTerms& terms = request.terms.with_tables;
    // Values that are computed for each element leave too few registers.
    if (terms.computes_indices &&
        (shape.consumers == 3 || (terms.computes_much() && !terms.copies_indices)))
        return false;
    // Limit for the unrolled code of a warp's keys, which exists for tables on chip and in memory:
    // more takes several times as long to compile, and spills.
    constexpr int kMostInstructions = 5600;
    if (terms.element_instructions * shape.key_tile > kMostInstructions) return false;
    return !terms.entries.empty() && table_words({request, shape, Reads::from_tables}) &&
           suits({request, shape, Reads::from_tables});
}

bool suits_aligned_tables(const KernelRequest& request, const ForwardSchedule& shape) {
    // With tabulated values, three warpgroups are slower than two.
    if (shape.consumers == 3 && staged_values(request, Reads::from_aligned_tables).any())
        return false;
    return aligned_step(request, shape) != 0 &&
           table_words({request, shape, Reads::from_aligned_tables}) &&
           suits({request, shape, Reads::from_aligned_tables});
}

bool suits_copies(const KernelRequest& request, const ForwardSchedule& shape) {
    return !why_copied(request).empty() && suits({request, shape, Reads::beside_copies});
}

bool suits_shifts(const KernelRequest& request, const ForwardSchedule& shape) {
    return !request.terms.with_shifts.empty() && suits({request, shape, Reads::with_shifts});
}

// Returns how a kernel of this shape, if requested explicitly, handles reads.
Reads reads_of(const KernelRequest& request, const ForwardSchedule& shape) {
    if (!request.sequences.scattered_in.empty() || suits_copies(request, shape))
        return Reads::beside_copies;
    if (suits_shifts(request, shape)) return Reads::with_shifts;
    if (fits_index_2d(request, shape)) return Reads::by_index_2d;
    if (suits_kinds(request, shape)) return Reads::by_kinds;
    if (suits_aligned_tables(request, shape)) return Reads::from_aligned_tables;
    return suits_tables(request, shape) ? Reads::from_tables : Reads::plain;
}

// Returns the request with as many shifted reads as fit into shared memory. The others are read for
// each element.
KernelRequest with_room_for_shifts(KernelRequest request) {
    const auto has_room = [&](const ForwardSchedule& shape) {
        return suits_shifts(request, shape) && is_chosen({request, shape, Reads::with_shifts});
    };
    while (!request.terms.with_shifts.empty() && std::ranges::none_of(kForwardShapes, has_room))
        request.terms.with_shifts.erase(request.terms.with_shifts.begin());
    return request;
}

// The number of stages of queries does not change the registers that are needed.
bool needs_fewer_registers(const ForwardSchedule& shape, const ForwardSchedule& than) {
    return shape.consumers < than.consumers || shape.key_tile <= than.key_tile - kLeastStep ||
           shape.overlaps != than.overlaps;
}

// Returns the shapes to try, best first; each costs a compile: the best, one that is a step
// smaller, the best with fewer warpgroups (which have more registers), and the smallest. If the
// kernel can copy shifted reads or keys, multiply by kinds of keys, or keep tables on chip, the
// best two shapes that do so come first, and the best with fewer warpgroups than these. If keys are
// not in order, all shapes copy them.
std::vector<Choice> choices_for(const KernelRequest& request) {
    std::vector<Choice> choices;
    std::size_t most = 3;
    // Takes what flexc may choose, unless it needs as many registers as the choice before.
    const auto take = [&](const Choice& choice) {
        if (!is_chosen(choice)) return;
        const bool follows = !choices.empty() && choices.back().reads == choice.reads;
        if (follows && !needs_fewer_registers(choice.shape, choices.back().shape)) return;
        const bool has_fewer_warpgroups =
            follows && choice.shape.consumers < choices.back().shape.consumers;
        if (choices.size() == most) choices.pop_back();
        choices.push_back(choice);
        most += has_fewer_warpgroups;
    };
    // Takes the best two shapes for this kind of reads, and the best with fewer warpgroups, unless
    // another kind has been taken.
    const auto take_two = [&](Reads reads, auto suits_reads) {
        if (!choices.empty()) return;
        constexpr std::size_t kMost = 2;
        for (const ForwardSchedule& shape : kForwardShapes) {
            const bool has_fewer_warpgroups =
                choices.size() == kMost && shape.consumers < choices.back().shape.consumers;
            if ((choices.size() < kMost || has_fewer_warpgroups) && suits_reads(request, shape))
                take({request, shape, reads});
        }
        most += choices.size();
    };
    if (!request.sequences.scattered_in.empty()) {
        for (const ForwardSchedule& shape : kForwardShapes)
            if (suits_copies(request, shape)) take({request, shape, Reads::beside_copies});
        return choices;
    }
    take_two(Reads::beside_copies, suits_copies);
    take_two(Reads::with_shifts, suits_shifts);
    if (choices.empty())
        for (const ForwardSchedule& shape : kIndex2dShapes)
            if (suits_index_2d(request, shape)) take({request, shape, Reads::by_index_2d});
    take_two(Reads::by_kinds, suits_kinds);
    take_two(Reads::from_aligned_tables, suits_aligned_tables);
    take_two(Reads::from_tables, suits_tables);
    for (const ForwardSchedule& shape : kForwardShapes)
        take({request, shape, Reads::plain});
    return choices;
}

// If `next` is only a step smaller, lets it be skipped when `config` spills more bytes than a step
// can save. Three warpgroups, which have the fewest registers, can save more than 128 bytes. What
// many reads of each element need hardly depends on the tile.
void pass_over_step(const KernelRequest& request, KernelConfig& config, const KernelConfig& next) {
    constexpr int kSavable = 256, kSavableOfReads = 64;
    const ForwardSchedule &shape = *config.schedule, &smaller = *next.schedule;
    if (shape.consumers != smaller.consumers || shape.overlaps != smaller.overlaps ||
        config.decomposition.stages_tables() != next.decomposition.stages_tables() ||
        shape.key_tile - smaller.key_tile > kLeastStep)
        return;
    config.spills.saving_forms = 1;
    config.spills.savable = request.work.reads_much() ? kSavableOfReads : kSavable;
    config.spills.beside = std::numeric_limits<int>::max();
}

} // namespace

std::vector<ForwardSchedule> forward_schedules(const KernelRequest& asked) {
    const KernelRequest request = with_room_for_shifts(asked);
    constexpr std::size_t kSizes = 4; // number of tile sizes: smaller tiles only save registers
    std::vector<ForwardSchedule> schedules;
    std::vector<ForwardSchedule> shapes;
    for (const ForwardSchedule& shape : kIndex2dShapes)
        if (suits_index_2d(request, shape)) shapes.push_back(shape);
    if (shapes.empty()) shapes.assign(kForwardShapes.begin(), kForwardShapes.end());
    // flexc's own choice comes first.
    const std::vector<Choice> choices = choices_for(request);
    if (!choices.empty()) {
        const auto chosen = std::ranges::find(shapes, choices.front().shape);
        if (chosen != shapes.end()) std::rotate(shapes.begin(), chosen, chosen + 1);
    }
    std::size_t sizes = 0;
    for (const ForwardSchedule& shape : shapes) {
        const Reads reads = reads_of(request, shape);
        const Choice choice{request, shape, reads};
        if (!suits(choice) || sizes == kSizes) continue;
        if (sizes++ == 0) {
            schedules.push_back(with_ping_pong(choice));
            for (int columns = 0; columns <= kMostPolynomials; ++columns) {
                ForwardSchedule schedule = schedules.front();
                schedule.polynomials = columns;
                if (may_take_polynomials(request, reads) && schedule != schedules.front())
                    schedules.push_back(schedule);
            }
        }
        for (const PingPong ping_pong : {PingPong::softmax, PingPong::mma, PingPong::none})
            for (const int columns : {0, 4, 8}) {
                ForwardSchedule schedule = shape;
                schedule.ping_pong = ping_pong;
                schedule.rescales_after = columns;
                schedule.polynomials = schedules.front().polynomials;
                if (schedule != schedules.front()) schedules.push_back(schedule);
            }
    }
    return schedules;
}

std::vector<KernelConfig> forward_candidates(const KernelRequest& asked) {
    const KernelRequest request = with_room_for_shifts(asked);
    if (request.schedule) {
        KernelConfig config =
            configured({request, *request.schedule, reads_of(request, *request.schedule)});
        config.spills.tolerated = std::numeric_limits<int>::max();
        config.reason += "; asked for";
        return {config};
    }
    std::vector<KernelConfig> candidates;
    for (const Choice& choice : choices_for(request)) {
        KernelConfig config = configured({request, with_ping_pong(choice), choice.reads});
        if (!candidates.empty())
            config.reason += "; larger tiles spilled registers or serialised products";
        candidates.push_back(std::move(config));
    }
    // Spilling these bytes costs less than what follows: reading tables from memory, or the generic
    // kernel, which has half the speed.
    constexpr int kSpillsOfLast = 64;
    const auto may_spill = [&](KernelConfig& last) {
        last.spills.tolerated = std::max(last.spills.tolerated, kSpillsOfLast);
    };
    for (std::size_t at = 0; at + 1 < candidates.size(); ++at) {
        pass_over_step(request, candidates[at], candidates[at + 1]);
        if (candidates[at].decomposition.stages_tables() &&
            !candidates[at + 1].decomposition.stages_tables())
            may_spill(candidates[at]);
    }
    if (!candidates.empty()) may_spill(candidates.back());
    return candidates;
}

} // namespace flexc::plan::sm90
