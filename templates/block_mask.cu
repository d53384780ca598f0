// Builds block masks: which tiles of the score matrix the attention kernels visit, and in which of
// those nothing is hidden. Three launches build the block masks of all kernels (blockIdx.y), for
// each b and h that the mask tells apart; for layouts other than dense, for each such h and all
// requests. They use programmatic dependent launch: each waits before it reads what the one ahead
// writes.
//
// What the mask computes from queries alone or keys alone is reduced to its least and greatest
// value in each tile. Interval arithmetic on these decides most tiles. For the others the mask is
// evaluated at the corners, which finds any edge through the tile; if the corners agree, at every
// element, until one is visible and one is hidden.
#include "mod.cuh"

#include "common/arguments.h"
#include "common/block_mask.h"
#include "common/corners.cuh"
#include "common/dependence.cuh"
#include "common/sequence_length.cuh"

using interval::Fact;

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kAtLeastOne = 1; // entry, in arrays that may be empty

__device__ int lane_index() { return static_cast<int>(threadIdx.x) % 32; }
__device__ int warp_index() { return static_cast<int>(threadIdx.x) / 32; }
__device__ int tiles_of(int length, int tile) { return (length + tile - 1) / tile; }

// A tile of queries or keys: its batch entry, and its number within the entry. For requests, a
// place in the order of tiles may hold no tile.
using TilePlace = TileOfRequest;

// Returns the tile at `index`, among as many as all entries have: of the block mask's own entry, or
// of requests in the order of block_mask.h.
template <bool kIsRagged, typename FirstRow>
__device__ TilePlace place_of(const AttentionArguments& attention, const BlockMaskArguments& all,
                              int mask, int index, int tile, int tiles, FirstRow first_row) {
    if constexpr (mod::Layouts::kAreDense) return {mask / all.masks_of_heads, index};
    if constexpr (kIsRagged) return tile_of_request(index, attention.batch, tile, first_row);
    const int tiles_of_one = tiles / attention.batch;
    return {index / tiles_of_one, index % tiles_of_one};
}
// The inverse: the index of an entry's tile.
template <bool kIsRagged>
__device__ int index_of(const AttentionArguments& attention, int b, int own, long long first_row,
                        int tile, int tiles) {
    if constexpr (mod::Layouts::kAreDense) return own;
    if constexpr (kIsRagged) return static_cast<int>(first_row / tile) + b + own;
    return b * (tiles / attention.batch) + own;
}

__device__ TilePlace query_place(const AttentionArguments& attention, const BlockMaskArguments& all,
                                 const BuiltBlockMask& built, int mask, int index) {
    return place_of<mod::Layouts::kQueriesAreRagged>(
        attention, all, mask, index, built.query_tile, built.query_tiles,
        [&](int b) { return attention.sequences.of(b).q_row; });
}
__device__ TilePlace key_place(const AttentionArguments& attention, const BlockMaskArguments& all,
                               const BuiltBlockMask& built, int mask, int index) {
    return place_of<mod::Layouts::kKeysAreRagged>(
        attention, all, mask, index, built.key_tile, built.key_tiles,
        [&](int b) { return attention.sequences.of(b).kv_row; });
}

// Whether the kernel that reads the block mask computes this entry.
__device__ bool has_rows(const AttentionArguments& attention, const BuiltBlockMask& built,
                         const SequenceLength& length) {
    if (mod::Layouts::kAreDense || built.rows_of == RowsOf::all) return true;
    return has_few_rows(length, attention.heads / attention.kv_heads) ==
           (built.rows_of == RowsOf::few);
}

// One (b, h), on behalf of all that share its mask.
struct BlockMaskHead {
    const mod::Arguments& arguments;
    const SequenceLength length;
    int b, h, h_kv;
    mod::Launch launch;
    mod::Head head;

    __device__ BlockMaskHead(const AttentionArguments& attention, const mod::Arguments& words,
                             const BlockMaskArguments& all, int mask,
                             const SequenceLength& of_entry)
        : arguments(words), length(of_entry), b(length.b()), h(mask % all.masks_of_heads),
          h_kv(h / (attention.heads / attention.kv_heads)), launch(mod::at_launch(words)),
          head(mod::at_head(words, launch, b, h, h_kv)) {}

    // Converts rows of the tensors to positions that the program sees.
    __device__ int q(int row) const { return row + static_cast<int>(length.q_offset()); }
    __device__ int kv(int row) const { return row + static_cast<int>(length.kv_offset()); }
    __device__ mod::Row row(int position) const {
        return mod::at_row(arguments, launch, head, b, h, h_kv, q(position));
    }
    __device__ mod::Column column(int position) const {
        return mod::at_column(arguments, launch, head, b, h, h_kv, kv(position));
    }
    __device__ bool visible(int q_row, int kv_row) const {
        const mod::Row row_value = row(q_row);
        const mod::Column column_value = column(kv_row);
        return mod::visible(
            {arguments, launch, head, row_value, column_value, b, h, h_kv, q(q_row), kv(kv_row)});
    }
};

// Positions first ... last of a tile.
struct Span {
    int first, last;
    __device__ Span(int tile, int size, int length)
        : first(tile * size), last(min(first + size, length) - 1) {}
    // Whether the place holds no tile of a request, or the tile is past its end.
    __device__ bool is_empty() const {
        return !mod::Layouts::kAreDense && (first < 0 || first > last);
    }
};

__device__ double shuffle(double x, int distance) {
    const long long bits = __double_as_longlong(x);
    return __longlong_as_double(__shfl_xor_sync(0xffffffffu, bits, distance));
}

// Called by a warp. Reduces what `facts_at(position, facts)` gives to its range over the span.
template <int kCount, typename FactsAt>
__device__ void reduce_facts(Span span, double* to, FactsAt facts_at) {
    if constexpr (kCount > 0) {
        Fact sums[kCount];
        for (int i = 0; i < kCount; ++i)
            sums[i] = {interval::kFar, -interval::kFar};
        for (int position = span.first + lane_index(); position <= span.last; position += 32) {
            Fact facts[kCount];
            facts_at(position, facts);
            for (int i = 0; i < kCount; ++i)
                sums[i] = interval::hull(sums[i], facts[i]);
        }
        for (int i = 0; i < kCount; ++i) {
            for (int distance = 16; distance != 0; distance /= 2)
                sums[i] = interval::hull(
                    sums[i], {shuffle(sums[i].low, distance), shuffle(sums[i].high, distance)});
            if (lane_index() == 0) {
                to[2 * i] = sums[i].low;
                to[2 * i + 1] = sums[i].high;
            }
        }
    }
}

// Called by a warp. Evaluates the mask at all elements of a tile, until one is visible and one is
// hidden. Rows are taken from both ends in turn, where edges are found early.
__device__ TileWord evaluate_tile(const BlockMaskHead& head, Span queries, Span keys) {
    bool visible = false, hidden = false;
    const int rows = queries.last - queries.first + 1;
    for (int i = 0; i < rows; ++i) {
        const int q = i % 2 == 0 ? queries.first + i / 2 : queries.last - i / 2;
        for (int kv = keys.first + lane_index(); kv <= keys.last; kv += 32) {
            const bool seen = head.visible(q, kv);
            visible |= seen;
            hidden |= !seen;
        }
        if (__any_sync(0xffffffffu, visible) && __any_sync(0xffffffffu, hidden)) return {1, 0};
    }
    return __any_sync(0xffffffffu, visible) ? TileWord{1, 1} : TileWord{0, 0};
}

// A row of a block mask: a tile of queries against all tiles of keys, its columns, or the other
// way.
struct RowOfTiles {
    const BuiltBlockMask& built;
    const SequenceLength& length;
    int mask; // among those of heads and batch entries
    TilePlace place;

    __device__ Span queries(int column) const {
        return Span(built.by_keys ? column : place.tile, built.query_tile, length.queries());
    }
    __device__ Span keys(int column) const {
        return Span(built.by_keys ? place.tile : column, built.key_tile, length.keys());
    }
    __device__ bool is_empty() const {
        return built.by_keys ? keys(0).is_empty() : queries(0).is_empty();
    }
    __device__ int columns() const {
        if constexpr (mod::Layouts::kAreDense)
            return built.by_keys ? built.query_tiles : built.key_tiles;
        return built.by_keys ? tiles_of(length.queries(), built.query_tile)
                               : tiles_of(length.keys(), built.key_tile);
    }
};

// Loads the facts of one tile. tiles: of that side in a mask.
__device__ void load_facts(const double* facts, int count, int mask, int tiles, int tile,
                           Fact* to) {
    const double* const from = facts + 2 * count * (static_cast<long long>(mask) * tiles + tile);
    for (int i = 0; i < count; ++i)
        to[i] = {from[2 * i], from[2 * i + 1]};
}

// Whether the mask is true in all of a tile, in none of it, or not known, by facts alone.
__device__ Fact visible_by_facts(const AttentionArguments& attention, const RowOfTiles& row,
                                 const BlockMaskHead& head, int column, Span queries, Span keys) {
    const BuiltBlockMask& built = row.built;
    Fact query_facts[mod::kQueryFacts + kAtLeastOne], key_facts[mod::kKeyFacts + kAtLeastOne];
    const int query_index = index_of<mod::Layouts::kQueriesAreRagged>(
        attention, row.place.request, built.by_keys ? column : row.place.tile,
        row.length.first_query_row(), built.query_tile, built.query_tiles);
    const int key_index = index_of<mod::Layouts::kKeysAreRagged>(
        attention, row.place.request, built.by_keys ? row.place.tile : column,
        row.length.first_key_row(), built.key_tile, built.key_tiles);
    load_facts(built.query_facts, mod::kQueryFacts, row.mask, built.query_tiles, query_index,
               query_facts);
    load_facts(built.key_facts, mod::kKeyFacts, row.mask, built.key_tiles, key_index,
               key_facts);
    return mod::tile_visible(head.arguments, head.launch, head.head, head.b, head.h, head.h_kv,
                             {double(head.q(queries.first)), double(head.q(queries.last))},
                             {double(head.kv(keys.first)), double(head.kv(keys.last))}, query_facts,
                             key_facts);
}

// Whether the mask agrees at the corners of a tile. In a row of tiles that crosses the border of
// two documents, facts leave many tiles undecided, each with different corners.
__device__ bool corners_agree(const BlockMaskHead& head, Span queries, Span keys) {
    return !corners_differ(queries.first, queries.last, keys.first, keys.last,
                           [&](int q, int kv) { return head.visible(q, kv); });
}

} // namespace

// Launched with a warp for each tile of queries and of keys.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_block_mask_facts(const __grid_constant__ AttentionArguments attention,
                           const __grid_constant__ mod::Arguments arguments,
                           const __grid_constant__ BlockMaskArguments all) {
    let_next_start();
    const BuiltBlockMask& built = all.masks[blockIdx.y];
    const int tiles = built.query_tiles + built.key_tiles;
    const long long unit = static_cast<long long>(blockIdx.x) * kWarps + warp_index();
    const int mask = static_cast<int>(unit / tiles);
    if (mask >= all.masks_of_heads * all.masks_of_batches) return;
    const int index = static_cast<int>(unit % tiles);
    const bool is_key = index >= built.query_tiles;
    const int tile = is_key ? index - built.query_tiles : index;
    if (lane_index() == 0 && is_key == (built.by_keys != 0))
        built.mask.rows[static_cast<long long>(mask) * built.mask.row_count + tile] = {
            0, 1 << 30, 0};
    const TilePlace place = is_key ? key_place(attention, all, built, mask, tile)
                                   : query_place(attention, all, built, mask, tile);
    const SequenceLength length(attention, place.request);
    const Span span = is_key ? Span(place.tile, built.key_tile, length.keys())
                             : Span(place.tile, built.query_tile, length.queries());
    if (span.is_empty() || !has_rows(attention, built, length)) return;
    const BlockMaskHead head(attention, arguments, all, mask, length);
    if (is_key) {
        const long long at = static_cast<long long>(mask) * built.key_tiles + tile;
        reduce_facts<mod::kKeyFacts>(
            span, built.key_facts + 2 * mod::kKeyFacts * at,
            [&](int position, Fact* facts) { mod::key_facts(head.column(position), facts); });
    } else {
        const long long at = static_cast<long long>(mask) * built.query_tiles + tile;
        reduce_facts<mod::kQueryFacts>(
            span, built.query_facts + 2 * mod::kQueryFacts * at,
            [&](int position, Fact* facts) { mod::query_facts(head.row(position), facts); });
    }
}

// Launched with a block for 256 tiles of a row, a thread for each.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_block_mask_tiles(const __grid_constant__ AttentionArguments attention,
                           const __grid_constant__ mod::Arguments arguments,
                           const __grid_constant__ BlockMaskArguments all) {
    let_next_start();
    wait_for_kernel_ahead();
    const BuiltBlockMask& built = all.masks[blockIdx.y];
    const BlockMask& tiles = built.mask;
    const int parts = (tiles.word_count + kWarps - 1) / kWarps;
    const long long row_index = blockIdx.x / static_cast<unsigned>(parts);
    const int mask = static_cast<int>(row_index / tiles.row_count);
    if (mask >= all.masks_of_heads * all.masks_of_batches) return;
    const int index = static_cast<int>(row_index % tiles.row_count);
    const int first_word = static_cast<int>(blockIdx.x % static_cast<unsigned>(parts)) * kWarps;
    const TilePlace place = built.by_keys ? key_place(attention, all, built, mask, index)
                                            : query_place(attention, all, built, mask, index);
    const SequenceLength length(attention, place.request);
    const RowOfTiles row{built, length, mask, place};
    const int columns = row.columns();
    if constexpr (!mod::Layouts::kAreDense) {
        if (row.is_empty() || 32 * first_word >= columns || !has_rows(attention, built, length))
            return;
    }
    const BlockMaskHead head(attention, arguments, all, mask, length);
    const int column = 32 * first_word + static_cast<int>(threadIdx.x);
    Fact visible = interval::of(false);
    bool is_open = false;
    if (column < columns) {
        const Span queries = row.queries(column), keys = row.keys(column);
        visible = visible_by_facts(attention, row, head, column, queries, keys);
        is_open = visible.low != visible.high && corners_agree(head, queries, keys);
    }
    __shared__ TileWord words[kWarps];
    __shared__ int undecided[kThreads], undecided_count;
    const TileWord tested = {__ballot_sync(0xffffffffu, visible.high != 0),
                             __ballot_sync(0xffffffffu, visible.low == 1)};
    if (lane_index() == 0) words[warp_index()] = tested;
    if (threadIdx.x == 0) undecided_count = 0;
    __syncthreads();
    if (is_open) undecided[atomicAdd(&undecided_count, 1)] = static_cast<int>(threadIdx.x);
    __syncthreads();
    for (int i = warp_index(); i < undecided_count; i += kWarps) {
        const int at = undecided[i], undecided_column = 32 * first_word + at;
        const TileWord seen =
            evaluate_tile(head, row.queries(undecided_column), row.keys(undecided_column));
        if (lane_index() != 0) continue;
        if (seen.visible == 0) atomicAnd(&words[at / 32].visible, ~(1u << at % 32));
        if (seen.full != 0) atomicOr(&words[at / 32].full, 1u << at % 32);
    }
    __syncthreads();

    const int word = first_word + static_cast<int>(threadIdx.x);
    if (threadIdx.x >= kWarps || word >= tiles.word_count) return;
    const TileWord mine = words[threadIdx.x];
    tiles.words[row_index * tiles.word_count + word] = mine;
    if (mine.visible == 0) return;
    TileRow& sum = tiles.rows[row_index];
    atomicAdd(&sum.count, __popc(mine.visible));
    atomicMin(&sum.begin, 32 * word + __ffs(mine.visible) - 1);
    atomicMax(&sum.end, 32 * word + 32 - __clz(mine.visible));
}

// Sorts rows by length, longest first: a row's place is the number of rows before it. A thread for
// each row.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_block_mask_order(const __grid_constant__ AttentionArguments attention,
                           const __grid_constant__ mod::Arguments arguments,
                           const __grid_constant__ BlockMaskArguments all) {
    let_next_start();
    wait_for_kernel_ahead();
    const BlockMask& tiles = all.masks[blockIdx.y].mask;
    const int blocks = (tiles.row_count + kThreads - 1) / kThreads;
    const long long mask = blockIdx.x / static_cast<unsigned>(blocks);
    if (mask >= all.masks_of_heads * all.masks_of_batches) return;
    const int thread = static_cast<int>(threadIdx.x);
    const int row =
        static_cast<int>(blockIdx.x % static_cast<unsigned>(blocks)) * kThreads + thread;
    const TileRow* const rows = tiles.rows + mask * tiles.row_count;
    __shared__ int counts[kThreads];
    const int mine = row < tiles.row_count ? rows[row].count : 0;
    int place = 0;
    for (int first = 0; first < tiles.row_count; first += kThreads) {
        __syncthreads();
        // Rows that do not exist compare as shorter than any other.
        counts[thread] = first + thread < tiles.row_count ? rows[first + thread].count : -1;
        __syncthreads();
        for (int i = 0; i < kThreads; ++i)
            place += counts[i] > mine || (counts[i] == mine && first + i < row);
    }
    if (row < tiles.row_count) tiles.order[mask * tiles.row_count + place] = row;
}
