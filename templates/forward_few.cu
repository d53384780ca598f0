// Attention, forward, of requests with few queries: keys and values are read once, at the speed of
// memory, for the queries of all heads that share them.
//
// A block computes tiles of 16 rows (packed_rows.cuh) over a part of the keys that they see. Its
// warps are teams of as many as there are tiles of rows. Teams take tiles of keys in turn
// (few_tiles.cuh), each at its own pace: a warp of a team loads one of them, and computes its rows
// over those of the whole team. Warps join their results at the end. Where a request has one part,
// that is its result; else flexc_merge_parts makes one of several.
#include "mod.cuh"

#include "common/dependence.cuh"
#include "sm80/few_tiles.cuh"
#include "sm80/forward_output.cuh"
#include "sm80/forward_step.cuh"
#include "sm80/packed_rows.cuh"
#include "sm80/partial_results.cuh"
#include "sm80/warp_key_loader.cuh"

using namespace sm80;

extern __shared__ __align__(128) unsigned char shared_memory[];

namespace {

constexpr int kBlockWarps = few_warps(kSizes);
constexpr int kWarpBytes = few_warp_bytes(kSizes);
constexpr int kMostTiles = most_few_tiles(kSizes); // of rows
constexpr int kMostRows = kMostTiles * mod::kQueryTile;
static_assert(few_bytes(kSizes, kMostTiles) <= mod::kSharedBytes);

__device__ int warp_index() { return static_cast<int>(threadIdx.y); }

// Tiles of queries, then each warp's stages, in which its results follow.
struct BlockMemory {
    unsigned base;
    int query_tiles; // of which there is memory

    __device__ QueryTile queries(int tile) const { return {base + tile * kLayout.stages}; }
    __device__ Shared of_warp(int tile, int warp) const {
        return {queries(tile).base, queries(query_tiles).base + warp * kWarpBytes};
    }
};
__device__ Staging results_of(const Shared& shared) { return {shared.stages}; }

// Warps beside each other that share tiles of keys; each has a tile of rows.
struct Team {
    int size; // 1, 2 or 4

    __device__ explicit Team(int tiles) : size(tiles <= 2 ? tiles : 4) {}
    __device__ int member() const { return warp_index() & (size - 1); }
    __device__ int first_warp() const { return warp_index() - member(); }
    __device__ int count() const { return kBlockWarps / size; }
    // What the team's warps wrote to shared memory before is there for all of it.
    __device__ void sync() const {
        if (size == 1)
            __syncwarp();
        else
            asm volatile("bar.sync %0, %1;" ::"r"(1 + first_warp()), "r"(32 * size) : "memory");
    }
};

// Keys that some row of the block may see.
__device__ Positions seen_by_all(Positions own, const Team& team) {
    if (team.size == 1) return own;
    __shared__ Positions of_warps[kBlockWarps];
    if (lane_index() == 0) of_warps[warp_index()] = own;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kBlockWarps; ++warp) {
        const Positions other = of_warps[warp];
        if (other.first > other.last) continue;
        own = own.first > own.last
                  ? other
                  : Positions{min(own.first, other.first), max(own.last, other.last)};
    }
    return own;
}

// Of the tile that a warp has loaded, for the others of its team.
struct LoadedTile {
    int tile;
    bool is_full; // nothing is hidden in it
};
__shared__ LoadedTile loaded_tiles[kBlockWarps];

// Tiles of a team that a warp computes at once, as registers allow: their products and shuffles
// overlap. Keys of eight bits and the words of a block mask leave none for a second one.
constexpr int kTilesAtOnce = mod::kHasBlockMask || kKeysAreNarrow ? 1 : 2;
template <int kTiles> struct Tiles {
    static constexpr int kCount = kTiles;
};

using Walk = TilesOfWarp<kBlockWarps>;
__device__ LoadedTile loaded_of(const Walk& walk) { return {walk.tile(), walk.is_full()}; }
__device__ void tell_team(const Walk& walk, const Team& team) {
    if (team.size > 1 && lane_index() == 0) loaded_tiles[warp_index()] = loaded_of(walk);
}

// Of so many tiles of rows, from first_row on, by all warps.
__device__ void load_queries(const AttentionArguments& attention, const SequenceLength& length,
                             const BlockMemory& memory, int tiles, int first_row, int row_count,
                             int h_kv, int group) {
    const auto place_of = [&](int row, int column) {
        return memory.queries(row / mod::kQueryTile).at(row % mod::kQueryTile, column);
    };
    const int thread = 32 * warp_index() + lane_index();
    constexpr int kBytes = kCopyBytes<Element, mod::kHeadDim>;
    const Plane<Element> first = query_plane<Element>(attention.q, length, h_kv * group);
    const long long head_bytes =
        attention.q.stride_h * static_cast<long long>(sizeof(Element)) * (group > 1);
    if (kBytes != 0 && first.aligned_to(kBytes) && head_bytes % (kBytes ? kBytes : 1) == 0) {
        constexpr int kColumns = kBytes ? kBytes / static_cast<int>(sizeof(Element)) : 1;
        constexpr int kPieces = mod::kHeadDim / kColumns;
#pragma unroll 1
        for (int i = thread; i < tiles * mod::kQueryTile * kPieces; i += 32 * kBlockWarps) {
            const int row = i / kPieces, column = i % kPieces * kColumns;
            const bool exists = first_row + row < row_count;
            const PackedRow at(exists ? first_row + row : 0, h_kv, group);
            copy_async<kBytes ? kBytes : 16>(
                place_of(row, column),
                query_plane<Element>(attention.q, length, at.h).at(at.query, column), exists);
        }
        return;
    }
#pragma unroll 1
    for (int i = thread; i < tiles * mod::kQueryTile * mod::kHeadDim; i += 32 * kBlockWarps) {
        const int row = i / mod::kHeadDim, column = i % mod::kHeadDim;
        Element value = flexc_from_float<Element>(0);
        if (first_row + row < row_count) {
            const PackedRow at(first_row + row, h_kv, group);
            value = *query_plane<Element>(attention.q, length, at.h).at(at.query, column);
        }
        store_shared(place_of(row, column), value);
    }
}

__device__ void store_row(const AttentionArguments& attention, const SequenceLength& length, int h,
                          int query, int column, float value) {
    if (attention.o_flags & kOutputF32)
        *query_plane<float>(attention.o, length, h).at(query, column) = value;
    else
        *query_plane<Element>(attention.o, length, h).at(query, column) =
            flexc_from_float<Element>(value);
}

// lse and what the row's sums have to be multiplied by; one lane for each row calls this.
__device__ float finish_row(const AttentionArguments& attention, const mod::Arguments& arguments,
                            const SequenceLength& length, int h, int query, float maximum,
                            float sum) {
    Softmax softmax;
    softmax.start(scales_early(attention) ? 1 : attention.scale);
    softmax.maximum[0] = maximum;
    const bool nothing_visible = maximum == negative_infinity();
    if (attention.lse.data)
        *query_plane<float>(attention.lse, length, h).at(query, 0) =
            nothing_visible ? negative_infinity() : softmax.lse(0, sum);
    if (nothing_visible) return 0;
    return reciprocal_fast(Sink::add(attention, arguments, length, h, query, maximum, sum));
}

// What several parts give for a row, relative to the largest of their maxima. A lane has every 32nd
// column.
struct WholeRow {
    static constexpr int kColumns = (mod::kHeadDimV + 31) / 32;
    float maximum, sum = 0, output[kColumns] = {};

    // part(i): {maximum, sum, output(column)} of it. One that saw nothing may have any output.
    template <typename Part> __device__ WholeRow(int count, float to_log2, Part part) {
        maximum = negative_infinity();
        constexpr int kAtOnce = 8; // whose loads are under way at once
        for (int first = 0; first < count; first += kAtOnce) {
            float of_part[kAtOnce], of_sum[kAtOnce], of_output[kAtOnce][kColumns];
            const float before = maximum;
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const auto from = part(min(first + i, count - 1));
                of_part[i] = first + i < count ? from.maximum() : negative_infinity();
                of_sum[i] = from.sum();
#pragma unroll
                for (int column = 0; column < kColumns; ++column)
                    of_output[i][column] = from.output(min(column_of(column), mod::kHeadDimV - 1));
            }
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i)
                maximum = fmaxf(maximum, of_part[i]);
            if (maximum == negative_infinity()) continue;
            rescale(exp2_fast((before - maximum) * to_log2));
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                if (of_part[i] == negative_infinity()) continue;
                const float weight = exp2_fast((of_part[i] - maximum) * to_log2);
                sum += weight * of_sum[i];
#pragma unroll
                for (int column = 0; column < kColumns; ++column)
                    output[column] += weight * of_output[i][column];
            }
        }
    }
    // Visits this lane's columns and what they are.
    template <typename Visit> __device__ void visit(Visit visit) const {
#pragma unroll
        for (int column = 0; column < kColumns; ++column)
            if (column_of(column) < mod::kHeadDimV) visit(column_of(column), output[column]);
    }

  private:
    static __device__ int column_of(int column) { return 32 * column + lane_index(); }
    __device__ void rescale(float factor) {
        sum *= factor;
#pragma unroll
        for (int column = 0; column < kColumns; ++column)
            output[column] *= factor;
    }
};

// A row of a warp's results in shared memory: behind the columns its maximum and its sum.
struct RowOfWarp {
    unsigned at;

    __device__ explicit RowOfWarp(unsigned address) : at(address) {}
    __device__ unsigned address(int column) const { return at + 4 * column; }
    __device__ float output(int column) const { return load_shared_float(address(column)); }
    __device__ float maximum() const { return output(Staging::kPaddedColumns); }
    __device__ float sum() const { return output(Staging::kPaddedColumns + 1); }
    __device__ void store_sums(float maximum, float sum) const {
        store_shared(address(Staging::kPaddedColumns), maximum, sum);
    }
    __device__ void store(const WholeRow& row) const {
        if (lane_index() == 0) store_sums(row.maximum, row.sum);
        row.visit([&](int column, float value) { store_shared(address(column), value); });
    }
};

__device__ void write_results(const Staging& results, const Softmax& softmax, const Output& output,
                              float factor) {
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        const int row = 8 * i + lane / 4;
        const float sum = quad_sum(softmax.sum[i]);
        if (lane % 4 == 0) RowOfWarp(results.at(row, 0)).store_sums(softmax.maximum[i], sum);
        stage_row(results, row, output, i, factor);
    }
}

// The factor is the same for all lanes of a row.
__device__ void store_whole_row(const AttentionArguments& attention,
                                const mod::Arguments& arguments, const SequenceLength& length,
                                const PackedRow& at, const WholeRow& row) {
    float factor = 0;
    if (lane_index() == 0)
        factor = finish_row(attention, arguments, length, at.h, at.query, row.maximum, row.sum);
    factor = __shfl_sync(0xffffffffu, factor, 0);
    row.visit([&](int column, float value) {
        store_row(attention, length, at.h, at.query, column, factor * value);
    });
}

// Of a row that a request does not use.
__device__ void clear_row(const AttentionArguments& attention, const SequenceLength& length,
                          const PackedRow& at) {
    if (attention.lse.data && lane_index() == 0)
        *query_plane<float>(attention.lse, length, at.h).at(at.query, 0) = negative_infinity();
    for (int column = lane_index(); column < mod::kHeadDimV; column += 32)
        store_row(attention, length, at.h, at.query, column, 0);
}

struct RowOfPart {
    const PartialResults& parts;
    int part, h_kv, row;

    __device__ float output(int column) const { return parts.output(part, h_kv, row)[column]; }
    __device__ float maximum() const { return parts.maximum(part, h_kv, row); }
    __device__ float sum() const { return parts.sum(part, h_kv, row); }
};

// Each warp joins some of the rows.
__device__ void store_rows(const KernelArguments& attention, const mod::Arguments& arguments,
                           const SequenceLength& length, const PartOfRequest& at, int part,
                           int h_kv, int group, int first_row, int row_count, const Team& team,
                           const BlockMemory& memory) {
    const PartialResults parts(attention);
    const float to_log2 = (scales_early(attention) ? 1 : attention.scale) * kLog2E;
    const int count = min(kMostRows, row_count - first_row);
    for (int own = warp_index(); own < count; own += kBlockWarps) {
        const int tile = own / mod::kQueryTile;
        const WholeRow whole(team.count(), to_log2, [&](int of_team) {
            const Shared shared = memory.of_warp(tile, of_team * team.size + tile);
            return RowOfWarp(results_of(shared).at(own % mod::kQueryTile, 0));
        });
        const int row = first_row + own;
        if (at.count == 1) {
            store_whole_row(attention, arguments, length, PackedRow(row, h_kv, group), whole);
            continue;
        }
        if (lane_index() == 0) {
            parts.maximum(part, h_kv, row) = whole.maximum;
            parts.sum(part, h_kv, row) = whole.sum;
        }
        whole.visit(
            [&](int column, float value) { parts.output(part, h_kv, row)[column] = value; });
    }
}

// Which rows a block has: those that meet the same keys are neighbours, then heads, as they are in
// pages.
struct BlockPlace {
    int group, part, h_kv, first_row;

    __device__ BlockPlace(const AttentionArguments& attention, int block)
        : group(flexc_quotient(attention.heads, attention.kv_heads)) {
        const int most_rows = few_rows(attention.q_len, group);
        const int blocks = kMostRows < kMostFewRows ? (most_rows + kMostRows - 1) / kMostRows
                                                    : 1; // of the same keys
        const int head = flexc_quotient(block, blocks);
        part = flexc_quotient(head, attention.kv_heads);
        h_kv = head - part * attention.kv_heads;
        first_row = (block - head * blocks) * kMostRows;
    }
};

} // namespace

extern "C" __global__ void __launch_bounds__(32 * kBlockWarps, 3)
    flexc_forward_few(const __grid_constant__ KernelArguments attention,
                      const __grid_constant__ mod::Arguments arguments) {
    let_next_start();
    const BlockPlace place(attention, static_cast<int>(blockIdx.x));
    const int group = place.group, h_kv = place.h_kv, first_row = place.first_row;
    const PartOfRequest at = part_of_request(attention, place.part);
    if (mod::kHasBlockMask) wait_for_kernel_ahead(); // of those that build it
    if (at.count == 0) return;
    const SequenceLength length(attention, at.request);
    const int row_count = length.queries() * group;
    if (kMostRows < kMostFewRows && first_row >= row_count) return; // else it has some
    const auto tiles_of = [](int rows) {
        return min((rows + mod::kQueryTile - 1) / mod::kQueryTile, kMostTiles);
    };
    const BlockMemory memory{shared_address(shared_memory),
                             tiles_of(few_rows(attention.q_len, group))};
    const int tiles = tiles_of(row_count - first_row);
    const Team team(tiles);
    const Shared shared = memory.of_warp(min(team.member(), tiles - 1), warp_index());
    const bool scale_early = scales_early(attention);

    const PackedRows rows(attention, arguments, length, first_row + team.member() * mod::kQueryTile,
                          row_count - 1, h_kv, group);
    const Surroundings around{attention, arguments, rows.row[0].place, length};
    Walk walk(attention,
              {length, h_kv * group, group, at, seen_by_all(rows.keys(), team), warp_index()}),
        ahead = walk;
    LoaderOfWarp<KeyTile, ValueTile> loader(attention, length, h_kv, walk.tile());
    loader.look_up(walk);
    loader.start(shared, walk, walk.tile());
    ahead.advance();
    loader.look_up(ahead);
    load_queries(attention, length, memory, tiles, first_row, row_count, h_kv, group);
    commit_copies();
    loader.start(shared, ahead, walk.tile());
    commit_copies();
    clear_padding(shared);

    Softmax softmax;
    KeyValueScales scales(attention, length, h_kv);
    Output output = {};
    softmax.start(scale_early ? 1 : attention.scale);
    const ForwardStep step{around, softmax, scales, output, scale_early};
    wait_for_groups<1>();
    tell_team(walk, team);
    __syncthreads(); // all warps' pieces of the queries are there
    scales.apply_to_queries(shared.queries(), 0, team.first_warp() == 0);
    // Of so many warps of the team, from that `first` behind this one on.
    const auto meet_tiles = [&](auto tiles, int first) {
        const auto loaded_by = [&](int i) {
            return team.size > 1 ? loaded_tiles[warp_index() + first + i] : loaded_of(walk);
        };
        step.meet<decltype(tiles)::kCount>(
            rows, shared.queries(), 0, walk.step(),
            [&](int i) {
                return TileHere{memory.of_warp(0, warp_index() + first + i),
                                loaded_by(i).tile * mod::kKeyTile};
            },
            [] {},
            [&](int i, int first_kv, int last_kv) {
                return loaded_by(i).is_full || rows.all_see(first_kv, last_kv);
            });
    };
    while (walk.has(-team.member())) {
        Walk next = ahead;
        next.advance();
        loader.look_up(next);
        int i = -team.member();
        const int end = i + team.size;
#pragma unroll 1
        for (; kTilesAtOnce > 1 && i + kTilesAtOnce <= end && walk.has(i + kTilesAtOnce - 1);
             i += kTilesAtOnce)
            meet_tiles(Tiles<kTilesAtOnce>{}, i);
#pragma unroll 1
        for (; i < end && walk.has(i); ++i)
            meet_tiles(Tiles<1>{}, i);
        team.sync(); // everyone has left these tiles, which make room for the next but one
        walk = ahead;
        ahead = next;
        tell_team(walk, team);
        loader.start(shared, ahead, walk.tile());
        commit_copies();
        wait_for_groups<1>();
        team.sync();
    }
    write_results(results_of(shared), softmax, output, scales.of_output());
    __syncthreads();
    const BlockPlace again(attention, block_index_again()); // not kept through the loop
    store_rows(attention, arguments, length, at, again.part, again.h_kv, again.group,
               again.first_row, row_count, team, memory);
}

// A block makes the results of some rows of a request with few queries, where it has several parts,
// and clears rows that it does not use. Its warps join some parts each; where there are few parts,
// those of some rows. Blocks with nothing to do end at once, and make room while parts are still
// computed; the first one waits in any case, as what follows this kernel needs its results.
extern "C" __global__ void __launch_bounds__(32 * kMergingWarps)
    flexc_merge_parts(const __grid_constant__ KernelArguments attention,
                      const __grid_constant__ mod::Arguments arguments) {
    const int group = attention.heads / attention.kv_heads;
    // Of each head of keys of a request.
    const int blocks = few_rows(attention.q_len, group) + kMergingBlocksBeside;
    const int block = static_cast<int>(blockIdx.x) % blocks;
    const int head = static_cast<int>(blockIdx.x) / blocks;
    const int h_kv = head % attention.kv_heads, b = head / attention.kv_heads;
    const SequenceLength length(attention, b);
    const int first_part = length.sequence().first_part;
    const int count = attention.sequences.of(b + 1).first_part - first_part;
    const bool is_of_warp = count <= kMergingWarps; // each row
    const long long rows = static_cast<long long>(length.query_rows()) * group;
    const long long first_row = is_of_warp ? block * kMergingWarps : block;
    const bool has_work = has_few_rows(length.sequence(), group) && first_row < rows &&
                          (count > 1 || length.queries() < length.query_rows());
    if (!has_work && blockIdx.x > 0) return;
    wait_for_kernel_ahead();
    if (!has_work) return;
    const PartialResults parts(attention);
    const float to_log2 = (scales_early(attention) ? 1 : attention.scale) * kLog2E;
    const int warp = warp_index(), first = count * warp / kMergingWarps,
              own = count * (warp + 1) / kMergingWarps - first;

    for (long long row = is_of_warp ? first_row + warp : first_row; row < rows;
         row += is_of_warp ? blocks * kMergingWarps : blocks) {
        const PackedRow packed(static_cast<int>(row), h_kv, group);
        if (packed.query >= length.queries()) {
            if (is_of_warp || warp == 0) clear_row(attention, length, packed);
            continue;
        }
        if (count < 2) continue;
        if (is_of_warp) {
            store_whole_row(
                attention, arguments, length, packed, WholeRow(count, to_log2, [&](int i) {
                    return RowOfPart{parts, first_part + i, h_kv, static_cast<int>(row)};
                }));
            continue;
        }
        const auto of_warp = [&](int warp) {
            return RowOfWarp(shared_address(shared_memory) + warp * Staging::kPitch);
        };
        of_warp(warp).store(WholeRow(own, to_log2, [&](int i) {
            return RowOfPart{parts, first_part + first + i, h_kv, static_cast<int>(row)};
        }));
        __syncthreads();
        if (warp == 0)
            store_whole_row(attention, arguments, length, packed,
                            WholeRow(kMergingWarps, to_log2, of_warp));
        __syncthreads(); // the results make room for those of the next row
    }
}
