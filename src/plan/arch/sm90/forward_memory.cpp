#include "plan/arch/sm90/forward_memory.h"

#include <algorithm>
#include <numeric>

#include "passes/key_kinds.h"
#include "plan/arch/sm90/element_sums.h"
#include "plan/arch/sm90/sm90.h"

namespace flexc::plan::sm90 {
namespace {

constexpr int kForwardStages = 2;
static_assert(passes::kMostByteKinds == ::sm90::PairKindsLayout::kMostInBytes);

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

// Sets the words of the copies of what kinds of pairs add, and their stages: a copy for each lane;
// for two lanes, of kinds that take two bytes, where there is room for no more; or one for all
// lanes, of which about three then wait for each other, as with a copy for any few of them.
void set_pair_copies(::sm90::ForwardSizes& sizes, int limit) {
    const auto layout =
        ::sm90::pair_kinds_layout(sizes.query_tile, sizes.key_tile, sizes.pair_kinds);
    for (const int copies : {32, kLeastPairCopies, 1})
        for (const int stages : {2, 1}) {
            sizes.table_words = (copies * layout.entries + 3) / 4 * 4;
            sizes.table_stages = stages;
            if (::sm90::forward_layout(sizes).bytes <= limit) return;
            if (stages == 1 && layout.kind_bytes == 1) return;
        }
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
        .bias_bytes = terms_of(request, reads).bias_bytes,
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
        .kind_columns = adds_kinds && multiplies ? kind_columns(request.terms.by_kinds.count) : 0,
        .kind_copies =
            copies_kinds && !request.terms.by_kinds.are_of_pairs ? request.terms.by_kinds.count : 0,
        .pair_kinds =
            copies_kinds && request.terms.by_kinds.are_of_pairs ? request.terms.by_kinds.count : 0,
        .copies_keys = reads == Reads::plain_with_copied_keys};
    // Two stages, or one where two do not fit.
    const int limit = shared_memory_limit(request.arch);
    const auto with_stages = [&](int ::sm90::ForwardSizes::* stages) {
        sizes.*stages = 2;
        if (::sm90::forward_layout(sizes).bytes > limit) sizes.*stages = 1;
    };
    // Few tiles contain elements beyond the clamps.
    if (sizes.shifted_end_bytes != 0) with_stages(&::sm90::ForwardSizes::shifted_stages);
    if (sizes.pair_kinds != 0) set_pair_copies(sizes, limit);
    return sizes;
}

// Returns the stages of keys and values for short sequences: as many as fit, so that those of the
// next are loaded while one is computed.
int stages_of_sequences(::sm90::ForwardSizes sizes, int limit) {
    constexpr int kMost = 8;
    const auto fit = [&](int stages) {
        sizes.stages = stages;
        const ::sm90::ForwardLayout layout = ::sm90::forward_layout(sizes);
        return layout.bytes <= limit && layout.header_bytes <= layout.unit;
    };
    int stages = kForwardStages;
    while (stages < kMost && fit(stages + 1))
        ++stages;
    return stages;
}

// Returns the words after the slices. Aligned tiles read past a slice; those values are unused, but
// the memory must belong to the block.
int words_behind(Reads reads) { return reads == Reads::with_aligned_tables ? 256 : 0; }

// Returns the registers of a thread for the biases of its scores.
int biases(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    // Indices need no registers of their own: they are replaced by the entries that they name
    // before products are added.
    const bool stay = reads != Reads::with_tables || !request.terms.with_tables.copies_indices;
    return stay ? shape.key_tile / 2 * terms_of(request, reads).bias_bytes / 4 : 0;
}

} // namespace

int TableWords::sum() const { return std::accumulate(of_tables.begin(), of_tables.end(), 0); }

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

::sm90::ForwardSizes sizes_of(const Choice& choice) {
    ::sm90::ForwardSizes sizes = sizes_without_tables(choice);
    if (stages_tables(choice.reads)) {
        const auto words = table_words(choice);
        sizes.table_words = words ? words->sum() + words_behind(choice.reads) : 0;
        sizes.table_stages = words ? words->stages : 0;
    }
    if (choice.request.sequences.most_rows != 0)
        sizes.stages = stages_of_sequences(sizes, shared_memory_limit(choice.request.arch));
    return sizes;
}

int pair_copies(const ::sm90::ForwardSizes& sizes) {
    return sizes.table_words /
           ::sm90::pair_kinds_layout(sizes.query_tile, sizes.key_tile, sizes.pair_kinds).entries;
}

int shared_bytes(const Choice& choice) { return ::sm90::forward_layout(sizes_of(choice)).bytes; }

int accumulators(const Choice& choice) {
    const ForwardSchedule& shape = choice.shape;
    const int weights = shape.overlaps ? shape.key_tile / 4 : 0;
    return shape.key_tile / 2 + biases(choice) + weights +
           padded_columns(choice.request.head_dim_v) / 2;
}

int accumulator_limit(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    // With a bias more than otherwise, as tolerated_spills() allows.
    if (shape.consumers == kMostWarpgroups) return biases(choice) != 0 ? 96 : 84;
    if (shape.consumers == 3) return 128;
    const bool has_fewer =
        terms_of(request, reads).bias_bytes > 2 || reads == Reads::plain_with_copied_keys;
    return has_fewer ? 180 : 192;
}

int sum_elements(const Choice& choice) {
    const auto& [request, shape, reads] = choice;
    // Accumulators that start with biases are still scores of the next tile.
    const int freed = terms_of(request, reads).beside.starts ? biases(choice) : 0;
    return sum_elements_of_rows(sums_of(request, reads),
                                accumulator_limit(choice) - accumulators(choice) + freed);
}

} // namespace flexc::plan::sm90
