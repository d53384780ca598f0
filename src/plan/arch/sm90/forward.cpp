// Tiles of Hopper's forward kernel.
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

// Best first. Three warpgroups share each load of keys where the output leaves them
// registers.
constexpr std::array kForwardShapes = {
    ForwardSchedule{3, 128, 2, true}, ForwardSchedule{3, 112, 2, true},
    ForwardSchedule{3, 96, 2, true},  ForwardSchedule{2, 128, 2, true},
    ForwardSchedule{2, 128, 1, true}, ForwardSchedule{2, 112, 1, true},
    ForwardSchedule{2, 96, 1, true},  ForwardSchedule{2, 80, 1, true},
    ForwardSchedule{2, 64, 1, true},  ForwardSchedule{2, 48, 1, true},
    ForwardSchedule{2, 64, 1, false}, ForwardSchedule{2, 48, 1, false},
};
// For a 2-D key index. What repeats from row to row leaves three warpgroups registers for short
// tiles.
constexpr std::array kIndex2dShapes = {
    ForwardSchedule{3, 64, 2, true},  ForwardSchedule{2, 128, 2, true},
    ForwardSchedule{2, 128, 1, true}, ForwardSchedule{2, 112, 2, true},
    ForwardSchedule{2, 112, 1, true}, ForwardSchedule{2, 96, 1, true},
    ForwardSchedule{2, 80, 1, true},  ForwardSchedule{2, 64, 1, true},
    ForwardSchedule{2, 48, 1, true},
};
constexpr int kForwardStages = 2;
constexpr int kMostPolynomials = 4;
constexpr int kLeastStep = 16; // keys by which the next smaller configuration is smaller

// What a kernel knows of reads beside its tiles.
enum class Reads : std::uint8_t {
    plain,
    by_index_2d,
    by_kinds,
    from_aligned_tables,
    from_tables,
    with_shifts,
    beside_copies
};

int bias_bytes_of(const KernelRequest& request, Reads reads) {
    switch (reads) {
    case Reads::by_kinds: return 0;
    case Reads::from_aligned_tables: return 0; // they have no dense bias beside them
    case Reads::from_tables: return request.bias_bytes_with_tables;
    case Reads::with_shifts: return 0; // among the shifted reads
    case Reads::plain:
    case Reads::by_index_2d:
    case Reads::beside_copies: break;
    }
    return request.bias_bytes;
}

const passes::TabulatedValues& tabulated_of(const KernelRequest& request, Reads reads) {
    switch (reads) {
    case Reads::by_index_2d: return request.tabulated_by_index_2d;
    case Reads::by_kinds: return request.tabulated_with_kinds;
    case Reads::from_aligned_tables: return request.tabulated_with_aligned_tables;
    case Reads::from_tables: return request.tabulated_with_tables;
    case Reads::with_shifts: return request.shifts.front().tabulated;
    case Reads::plain:
    case Reads::beside_copies: break;
    }
    return request.tabulated;
}

// TMA brings rows slowly that begin off a sector of memory and end within one. Of narrow heads that
// costs less than the third warpgroup, and of the widest, products take longer than either way.
bool has_slow_rows(int columns) {
    constexpr int kSectorColumns = 16, kFirst = 104, kLast = 200;
    return columns >= kFirst && columns <= kLast && columns % kSectorColumns != 0;
}

// Why threads copy keys and values, not TMA; empty where it brings them. What else is staged has
// these threads, or comes with TMA.
std::string why_copied(const KernelRequest& request) {
    if (!request.scattered_in.empty()) return formatted("they lie in {}", request.scattered_in);
    const bool stages_nothing = request.bias_bytes == 0 && request.shifts.empty() &&
                                request.table_entries.empty() && request.key_index_2d.width == 0 &&
                                !request.tabulated.any();
    if (stages_nothing && (has_slow_rows(request.head_dim) || has_slow_rows(request.head_dim_v)))
        return "rows are no whole sectors of memory";
    return "";
}

// Whether what is added for a row of the 2-D key index comes with the products: where tiles are
// single rows, so that an infinite number meets no zero, and numbers of 16 bits are as large as
// floats.
bool multiplies_index_2d_rows(const KernelRequest& request, const ForwardSchedule& shape,
                              Reads reads) {
    const passes::KeyIndex2d& index_2d = request.key_index_2d;
    return reads == Reads::by_index_2d && index_2d.quotients && index_2d.adds_to_products &&
           shape.key_tile == index_2d.width && request.dtype == DType::bf16;
}

int shifted_bytes(const KernelRequest& request, const ForwardSchedule& shape, Reads reads) {
    if (reads != Reads::with_shifts) return 0;
    int bytes = 0;
    for (const ShiftedTile& tile : request.shifts.front().tiles) {
        const int queries = 64 * shape.consumers, keys = shape.key_tile;
        bytes += ::sm90::shifted_tile_layout(tile.by_key ? keys : queries,
                                             tile.by_key ? queries : keys, tile.element_bytes)
                     .bytes;
    }
    return bytes;
}

int shifted_end_bytes(const KernelRequest& request, const ForwardSchedule& shape, Reads reads) {
    if (reads != Reads::with_shifts || !request.shifts.front().have_ends) return 0;
    int bytes = 0;
    for (const ShiftedTile& tile : request.shifts.front().tiles)
        bytes += ::sm90::shifted_end_bytes(tile.by_key ? shape.key_tile : 64 * shape.consumers);
    return bytes;
}

// Of as many kinds: a step of the MMAs has two columns for each of eight, or one of sixteen.
int kind_columns(int kinds) { return kinds <= 8 ? 8 : padded_columns(kinds); }

// Why QK does not multiply by a program's kinds of keys; empty where it does, if tiles have room.
std::string why_no_kinds(const KernelRequest& request) {
    const int columns = 2 * kind_columns(request.key_kinds);
    if (4 * columns > request.head_dim)
        return std::to_string(columns) + " columns for them are more than a quarter of queries'";
    if (request.key_kinds > ::sm90::ForwardLayout::kMostKinds)
        return "there is room for " + std::to_string(::sm90::ForwardLayout::kMostKinds);
    return "";
}

::sm90::ForwardSizes sizes_without_tables(const KernelRequest& request,
                                          const ForwardSchedule& shape, Reads reads) {
    const passes::KeyIndex2d& index_2d = request.key_index_2d;
    const passes::TabulatedValues& tabulated = tabulated_of(request, reads);
    const bool adds_rows = reads == Reads::by_index_2d && index_2d.quotients;
    const bool adds_kinds = reads == Reads::by_kinds, multiplies = why_no_kinds(request).empty();
    ::sm90::ForwardSizes sizes = {
        .query_tile = 64 * shape.consumers,
        .key_tile = shape.key_tile,
        .head_dim = request.head_dim,
        .head_dim_v = request.head_dim_v,
        .query_stages = shape.query_stages,
        .stages = kForwardStages,
        .bias_bytes = bias_bytes_of(request, reads),
        .shifted_bytes = shifted_bytes(request, shape, reads),
        .shifted_end_bytes = shifted_end_bytes(request, shape, reads),
        .key_values = tabulated.keys,
        .distance_values = tabulated.distances,
        .index_2d_rows = adds_rows ? shape.key_tile / index_2d.width : 0,
        .multiplies_index_2d_rows = multiplies_index_2d_rows(request, shape, reads),
        .copies_keys = reads == Reads::beside_copies,
        .kind_columns = adds_kinds && multiplies ? kind_columns(request.key_kinds) : 0,
        .kind_copies = adds_kinds && !multiplies ? request.key_kinds : 0};
    if (sizes.shifted_end_bytes == 0) return sizes;
    // Tiles with elements are few: one stage has to do where there is no room for two.
    sizes.shifted_stages = 2;
    if (::sm90::forward_layout(sizes).bytes > shared_memory_limit(request.arch))
        sizes.shifted_stages = 1;
    return sizes;
}

// Memory for slices of tables: of one tile of queries, and of the next one too where there is room.
struct TableWords {
    int stages = 0;
    std::vector<int> of_tables;
    int sum() const { return std::accumulate(of_tables.begin(), of_tables.end(), 0); }
};

// Behind the slices: what aligned tiles read beyond, and nobody uses, is memory of the block.
int words_behind(Reads reads) { return reads == Reads::from_aligned_tables ? 256 : 0; }

// Slices that are known are there whole. Empty where they have no room.
std::optional<TableWords> table_words(const KernelRequest& request, const ForwardSchedule& shape,
                                      Reads reads) {
    // Of a slice that is not known. With less, most would be read from memory.
    constexpr int kMostWords = 4096, kLeastWords = 1024;
    const int room = (shared_memory_limit(request.arch) -
                      ::sm90::forward_layout(sizes_without_tables(request, shape, reads)).bytes) /
                     static_cast<int>(sizeof(float));
    const auto words_of = [](std::int64_t entries) {
        return static_cast<int>(entries + 3) / 4 * 4;
    };
    int known = words_behind(reads), unknown = 0;
    for (const std::int64_t entries : request.table_entries) {
        known += words_of(entries);
        unknown += entries == 0;
    }
    for (const int stages : {2, 1}) {
        const int rest = room / stages - known;
        if (rest < unknown * kLeastWords) continue;
        TableWords words{stages, {}};
        const int words_of_unknown = std::min(rest / std::max(unknown, 1), kMostWords) / 4 * 4;
        for (const std::int64_t entries : request.table_entries)
            words.of_tables.push_back(entries != 0 ? words_of(entries) : words_of_unknown);
        return words;
    }
    return {};
}

bool stages_tables(Reads reads) {
    return reads == Reads::from_tables || reads == Reads::from_aligned_tables;
}

::sm90::ForwardSizes sizes_of(const KernelRequest& request, const ForwardSchedule& shape,
                              Reads reads) {
    ::sm90::ForwardSizes sizes = sizes_without_tables(request, shape, reads);
    if (!stages_tables(reads)) return sizes;
    const auto words = table_words(request, shape, reads);
    sizes.table_words = words ? words->sum() + words_behind(reads) : 0;
    sizes.table_stages = words ? words->stages : 0;
    return sizes;
}

int shared_bytes(const KernelRequest& request, const ForwardSchedule& shape, Reads reads) {
    return ::sm90::forward_layout(sizes_of(request, shape, reads)).bytes;
}

// Of one thread: scores, their biases, the P before them, and the output.
int accumulators(const KernelRequest& request, const ForwardSchedule& shape, Reads reads) {
    const int weights = shape.overlaps ? shape.key_tile / 4 : 0;
    // Indices make room for what they name before products are added to that.
    const bool stay = reads != Reads::from_tables || !request.copies_table_indices;
    const int biases = stay ? shape.key_tile / 2 * bias_bytes_of(request, reads) / 4 : 0;
    return shape.key_tile / 2 + biases + weights + padded_columns(request.head_dim_v) / 2;
}
int accumulator_limit(const KernelRequest& request, const ForwardSchedule& shape, Reads reads) {
    if (shape.consumers == 3) return 128;
    const bool has_fewer = bias_bytes_of(request, reads) > 2 || reads == Reads::beside_copies;
    return has_fewer ? 180 : 192;
}

bool is_wide(const KernelRequest& request) {
    return std::max(request.head_dim, request.head_dim_v) > 128;
}

bool suits(const KernelRequest& request, const ForwardSchedule& shape, Reads reads) {
    // Beyond this, masks and mods spill or MMAs are serialised.
    constexpr int kWidestOfThree = 96;
    if (shape.consumers == 3 && padded_columns(request.head_dim_v) > kWidestOfThree) return false;
    const bool has_copiers = bias_bytes_of(request, reads) > 0 || reads == Reads::with_shifts ||
                             reads == Reads::beside_copies;
    if (has_copiers && shape.consumers == 3) return false;
    return accumulators(request, shape, reads) <= accumulator_limit(request, shape, reads) &&
           shared_bytes(request, shape, reads) <= shared_memory_limit(request.arch);
}

// Whether flexc chooses it by itself. Tiles of three warpgroups visit more where a block mask has
// shapes of its own, and leave too few registers for looking at what is hidden.
bool is_chosen(const KernelRequest& request, const ForwardSchedule& shape, Reads reads) {
    return suits(request, shape, reads) && (!request.has_block_mask || shape.consumers != 3);
}

// Whether each tile is whole rows of the 2-D key index.
bool fits_index_2d(const KernelRequest& request, const ForwardSchedule& shape) {
    const int width = request.key_index_2d.width;
    return width > 0 && shape.key_tile % width == 0 && shape.key_tile % 16 == 0;
}
bool suits_index_2d(const KernelRequest& request, const ForwardSchedule& shape) {
    const passes::KeyIndex2d& index_2d = request.key_index_2d;
    if (!fits_index_2d(request, shape)) return false;
    // Of one thread: a number for each row of the 2-D key index and query, and what repeats.
    const int rows = index_2d.quotients ? 2 * shape.key_tile / index_2d.width : 0;
    const int period = index_2d.remainders ? std::lcm(index_2d.width, 8) / 2 : 0;
    return suits(request, shape, Reads::by_index_2d) &&
           accumulators(request, shape, Reads::by_index_2d) + rows + period <=
               accumulator_limit(request, shape, Reads::by_index_2d);
}

// Whether keys may come in any order, and the best one is known. A block mask has an order, and
// keys of requests end in the first of their tiles.
bool starts_at_highest(const KernelRequest& request, Reads reads) {
    return request.adds_by_position && reads == Reads::plain && !request.has_block_mask &&
           !request.is_ragged && request.scattered_in.empty();
}

bool starts_with_tables(const KernelRequest& request, Reads reads) {
    return reads == Reads::from_tables && request.starts_with_tables;
}

// Those of a 2-D key index, of keys that come from the highest on, and of products that are added
// to tables have another softmax.
bool may_take_polynomials(const KernelRequest& request, Reads reads) {
    return request.score_work.special_functions != 0 && reads != Reads::by_index_2d &&
           reads != Reads::by_kinds && !starts_at_highest(request, reads) &&
           !starts_with_tables(request, reads);
}

// Of eight columns, whose powers of two are polynomials: as many as spare the special function unit
// more cycles than anything else takes. For 32 scores, of a quarter of a multiprocessor:
int polynomials(const KernelRequest& request, Reads reads) {
    constexpr int kSpecialCycles = 8, kSoftmaxCycles = 8;
    constexpr int kColumns = 8, kPolynomialCycles = 10;
    if (!may_take_polynomials(request, reads)) return 0;
    const int special = kSpecialCycles * (1 + request.score_work.special_functions);
    const int products = (request.head_dim + request.head_dim_v) / 16;
    const int issued = kSoftmaxCycles + request.score_work.instructions;
    int columns = 0;
    const auto gains = [&](int more) {
        const int rest = special - more * kSpecialCycles / kColumns;
        return rest >= products && rest >= issued + more * kPolynomialCycles / kColumns;
    };
    while (columns < kMostPolynomials && gains(columns + 1))
        ++columns;
    return columns;
}

// Measured on an H200; without score mods with rests between loads. What is read for each element
// is read while the other warpgroup waits.
ForwardSchedule with_ping_pong(const KernelRequest& request, ForwardSchedule schedule,
                               Reads reads) {
    const bool wide = is_wide(request), narrow = schedule.consumers == 3;
    // The softmax of these is that of no score mod.
    const bool adds_to_products =
        starts_at_highest(request, reads) ||
        (reads == Reads::by_kinds && request.adds_kinds_alone) ||
        (reads == Reads::from_aligned_tables && request.adds_tables_alone) ||
        starts_with_tables(request, reads);
    const bool has_own_terms = reads == Reads::by_kinds || reads == Reads::from_aligned_tables;
    const bool adds_terms =
        (has_own_terms ? tabulated_of(request, reads) : request.tabulated).any() && !narrow &&
        !adds_to_products;
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

// What a reader of plans is told about a program's kinds of keys.
std::string of_kinds(const KernelRequest& request, const ::sm90::ForwardSizes& sizes) {
    const std::string kinds = std::to_string(request.key_kinds) + " kinds of keys";
    if (sizes.kind_columns != 0)
        return ", products by " + kinds + " in " + std::to_string(2 * sizes.kind_columns) +
               " more columns";
    const std::string why = why_no_kinds(request);
    return (why.empty() ? "" : ", no products by " + kinds + ": " + why) +
           (sizes.kind_copies != 0 ? ", a copy of their addends for each thread" : "");
}

// Whether what is added to elements is computed for a few of a thread's at a time: where many reads
// are written out otherwise, and none of them is loaded for neighbours together. Beside wide
// results too where accumulators start with that; after products, the generic kernel is faster
// there.
bool computes_in_parts(const KernelRequest& request, Reads reads) {
    constexpr int kNarrow = 64;
    const bool has_room = request.head_dim_v <= kNarrow || bias_bytes_of(request, reads) > 0;
    return has_room && request.reads_much() &&
           (reads == Reads::plain || reads == Reads::from_tables) &&
           !tabulated_of(request, reads).any();
}

// From a tile's first key to the next one's; 0 where no tile of so many keys is aligned.
int aligned_step(const KernelRequest& request, const ForwardSchedule& shape) {
    const auto tile = std::ranges::find(request.aligned_tiles, shape.key_tile, &AlignedTile::keys);
    return tile == request.aligned_tiles.end() ? 0 : tile->step;
}

KernelConfig configured(const KernelRequest& request, const ForwardSchedule& schedule,
                        Reads reads) {
    KernelConfig config;
    config.kind = KernelKind::forward;
    config.family = kName;
    config.template_path = "forward_sm90.cu";
    config.entry = "flexc_forward_sm90";
    config.query_tile = 64 * schedule.consumers;
    config.key_tile = schedule.key_tile;
    config.warps = 4 * (schedule.consumers + 1);
    config.stages = kForwardStages;
    const ::sm90::ForwardSizes sizes = sizes_of(request, schedule, reads);
    config.shared_bytes = ::sm90::forward_layout(sizes).bytes;
    config.specialized = WarpSpecializedForward{
        .schedule = schedule,
        .has_registers_for_columns =
            schedule.consumers == 2 && !is_wide(request) &&
            accumulators(request, schedule, reads) + schedule.key_tile / 4 <= 192,
        .sizes = sizes,
        .tabulated = tabulated_of(request, reads),
        .key_step = schedule.key_tile};
    // Those who copy biases know ranges only.
    config.has_block_mask =
        request.has_block_mask && sizes.bias_bytes == 0 && sizes.shifted_bytes == 0;
    // Reads element by element take far longer than these. Beside aligned tables, what a tile of
    // queries needs before and after its keys is spilled first.
    constexpr int kSpillsOfShifts = 64, kSpillsOfTables = 16;
    // Words outside of the loop, or of the warp that finds the order of keys, cost less than a
    // warpgroup does.
    constexpr int kSpillsOutside = 8;
    const bool may_spill_little = reads == Reads::from_aligned_tables ||
                                  (reads == Reads::from_tables && request.computes_much());
    config.tolerated_spills = request.is_long               ? kSpillsOfLong
                              : reads == Reads::with_shifts ? kSpillsOfShifts
                              : may_spill_little            ? kSpillsOfTables
                              : sizes.kind_copies != 0 || starts_at_highest(request, reads)
                                  ? kSpillsOutside
                                  : 0;
    config.reason = "wgmma, " + std::to_string(schedule.consumers) + " warpgroups of 64 rows, " +
                    (schedule.overlaps ? "products under the softmax" : "products in order");
    if (request.key_kinds != 0) config.reason += of_kinds(request, sizes);
    if (stages_tables(reads)) {
        config.specialized->table_words = table_words(request, schedule, reads)->of_tables;
        config.reason += ", tables in shared memory";
    }
    config.specialized->starts_with_tables = starts_with_tables(request, reads);
    if (reads == Reads::from_aligned_tables) {
        config.specialized->aligns_tables = true;
        config.specialized->key_step = aligned_step(request, schedule);
        config.reason += ", which tiles of keys are aligned with";
        if (config.specialized->key_step != schedule.key_tile)
            config.reason += ", " + std::to_string(config.specialized->key_step) + " keys apart";
    }
    config.specialized->computes_in_parts = computes_in_parts(request, reads);
    if (starts_at_highest(request, reads)) {
        config.specialized->starts_at_highest = true;
        config.reason += ", keys first to which most is added";
    }
    if (reads == Reads::with_shifts) {
        config.specialized->shifted_reads = static_cast<int>(request.shifts.front().tiles.size());
        config.reason +=
            ", shifted reads by tiles: " + std::to_string(config.specialized->shifted_reads);
        if (sizes.shifted_end_bytes != 0) config.reason += ", beyond all clamps by lines";
    }
    if (reads == Reads::beside_copies) {
        config.reason += ", keys copied by threads: ";
        config.reason += why_copied(request);
    }
    if (reads == Reads::by_index_2d) {
        config.key_width = request.key_index_2d.width;
        config.reason += ", a 2-D key index of " + std::to_string(config.key_width) + " columns";
    }
    return config;
}

bool suits_kinds(const KernelRequest& request, const ForwardSchedule& shape) {
    // Shorter tiles leave three warpgroups no more registers for what is added beside them.
    if (shape.consumers == 3 && shape.key_tile != kForwardShapes.front().key_tile) return false;
    constexpr int kShortest = 64; // in which reads from tables take longer
    return request.key_kinds != 0 && shape.key_tile >= kShortest &&
           suits(request, shape, Reads::by_kinds);
}

bool suits_tables(const KernelRequest& request, const ForwardSchedule& shape) {
    // What is computed for elements leaves too few registers.
    if (request.computes_table_indices &&
        (shape.consumers == 3 || (request.computes_much() && !request.copies_table_indices)))
        return false;
    // What is written out for a warp's keys, with tables on chip and in memory: more takes several
    // times as long to compile, and spills.
    constexpr int kMostInstructions = 5600;
    if (request.element_instructions * shape.key_tile > kMostInstructions) return false;
    return !request.table_entries.empty() && table_words(request, shape, Reads::from_tables) &&
           suits(request, shape, Reads::from_tables);
}

bool suits_aligned_tables(const KernelRequest& request, const ForwardSchedule& shape) {
    // Beside what is tabulated, three warpgroups take longer than two.
    if (shape.consumers == 3 && request.tabulated_with_aligned_tables.any()) return false;
    return aligned_step(request, shape) != 0 &&
           table_words(request, shape, Reads::from_aligned_tables) &&
           suits(request, shape, Reads::from_aligned_tables);
}

bool suits_copies(const KernelRequest& request, const ForwardSchedule& shape) {
    return !why_copied(request).empty() && suits(request, shape, Reads::beside_copies);
}

bool suits_shifts(const KernelRequest& request, const ForwardSchedule& shape) {
    return !request.shifts.empty() && suits(request, shape, Reads::with_shifts);
}

// What a kernel of this shape that someone asks for knows of reads.
Reads reads_of(const KernelRequest& request, const ForwardSchedule& shape) {
    if (!request.scattered_in.empty() || suits_copies(request, shape)) return Reads::beside_copies;
    if (suits_shifts(request, shape)) return Reads::with_shifts;
    if (fits_index_2d(request, shape)) return Reads::by_index_2d;
    if (suits_kinds(request, shape)) return Reads::by_kinds;
    if (suits_aligned_tables(request, shape)) return Reads::from_aligned_tables;
    return suits_tables(request, shape) ? Reads::from_tables : Reads::plain;
}

// With as many shifted reads as have room. Others are read for each element.
KernelRequest with_room_for_shifts(KernelRequest request) {
    const auto has_room = [&](const ForwardSchedule& shape) {
        return suits_shifts(request, shape) && is_chosen(request, shape, Reads::with_shifts);
    };
    while (!request.shifts.empty() && std::ranges::none_of(kForwardShapes, has_room))
        request.shifts.erase(request.shifts.begin());
    return request;
}

struct Choice {
    ForwardSchedule shape;
    Reads reads;
};

// A stage of queries more or less needs the same registers.
bool needs_fewer_registers(const ForwardSchedule& shape, const ForwardSchedule& than) {
    return shape.consumers < than.consumers || shape.key_tile <= than.key_tile - kLeastStep ||
           shape.overlaps != than.overlaps;
}

// The best, one that is a step smaller, the best with fewer warpgroups, which have more registers,
// and the smallest: each costs a compile. Where shifted reads or keys are copied, kinds of keys
// multiplied, or tables kept on chip, the best two of these come before. TMA brings no keys
// that are not in order: there all of them copy these.
std::vector<Choice> choices_for(const KernelRequest& request) {
    std::vector<Choice> choices;
    std::size_t most = 3;
    const auto take = [&](const ForwardSchedule& shape, Reads reads) {
        const bool follows = !choices.empty() && choices.back().reads == reads;
        if (follows && !needs_fewer_registers(shape, choices.back().shape)) return;
        const bool has_fewer_warpgroups =
            follows && shape.consumers < choices.back().shape.consumers;
        if (choices.size() == most) choices.pop_back();
        choices.push_back({shape, reads});
        most += has_fewer_warpgroups;
    };
    // The best two of those that copy or keep what is read.
    const auto take_two = [&](Reads reads, auto suits_reads) {
        if (!choices.empty()) return;
        constexpr std::size_t kMost = 2;
        for (const ForwardSchedule& shape : kForwardShapes)
            if (choices.size() < kMost && suits_reads(request, shape) &&
                is_chosen(request, shape, reads))
                take(shape, reads);
        most += choices.size();
    };
    if (!request.scattered_in.empty()) {
        for (const ForwardSchedule& shape : kForwardShapes)
            if (suits_copies(request, shape) && is_chosen(request, shape, Reads::beside_copies))
                take(shape, Reads::beside_copies);
        return choices;
    }
    take_two(Reads::beside_copies, suits_copies);
    take_two(Reads::with_shifts, suits_shifts);
    if (choices.empty())
        for (const ForwardSchedule& shape : kIndex2dShapes)
            if (suits_index_2d(request, shape) && is_chosen(request, shape, Reads::by_index_2d))
                take(shape, Reads::by_index_2d);
    take_two(Reads::by_kinds, suits_kinds);
    take_two(Reads::from_aligned_tables, suits_aligned_tables);
    take_two(Reads::from_tables, suits_tables);
    for (const ForwardSchedule& shape : kForwardShapes)
        if (is_chosen(request, shape, Reads::plain)) take(shape, Reads::plain);
    return choices;
}

// What spills more than a step saves gives way to what comes after the step. Three warpgroups,
// which have the fewest registers, spilled 136 bytes and then none.
void pass_over_step(KernelConfig& config, const KernelConfig& next) {
    constexpr int kSavable = 256;
    const ForwardSchedule &shape = config.specialized->schedule,
                          &smaller = next.specialized->schedule;
    if (shape.consumers != smaller.consumers || shape.overlaps != smaller.overlaps ||
        config.specialized->stages_tables() != next.specialized->stages_tables() ||
        shape.key_tile - smaller.key_tile > kLeastStep)
        return;
    config.saving_forms = 1;
    config.savable_spills = kSavable;
    config.beside_spills = std::numeric_limits<int>::max();
}

} // namespace

std::vector<ForwardSchedule> forward_schedules(const KernelRequest& asked) {
    const KernelRequest request = with_room_for_shifts(asked);
    constexpr std::size_t kSizes = 4; // of tiles: smaller ones only save registers
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
        if (!suits(request, shape, reads) || sizes == kSizes) continue;
        if (sizes++ == 0) {
            schedules.push_back(with_ping_pong(request, shape, reads));
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
            configured(request, *request.schedule, reads_of(request, *request.schedule));
        config.tolerated_spills = std::numeric_limits<int>::max();
        config.reason += "; asked for";
        return {config};
    }
    std::vector<KernelConfig> candidates;
    for (const Choice& choice : choices_for(request)) {
        KernelConfig config =
            configured(request, with_ping_pong(request, choice.shape, choice.reads), choice.reads);
        if (!candidates.empty())
            config.reason += "; larger tiles spilled registers or serialised products";
        candidates.push_back(std::move(config));
    }
    for (std::size_t at = 0; at + 1 < candidates.size(); ++at)
        pass_over_step(candidates[at], candidates[at + 1]);
    // The generic kernel, which follows, has half the speed; so few words cost less.
    constexpr int kSpillsOfLast = 64;
    if (!candidates.empty())
        candidates.back().tolerated_spills =
            std::max(candidates.back().tolerated_spills, kSpillsOfLast);
    return candidates;
}

} // namespace flexc::plan::sm90
