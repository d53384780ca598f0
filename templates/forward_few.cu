// Attention, forward, of requests with few queries: keys and values are read once, at the speed of
// memory, for the queries of all heads that share them.
//
// A block computes 16 rows (packed_rows.cuh) over a part of the keys that they see. Its
// warps take tiles of it in turn, each at its own pace, and join their results at the end. Where a
// request has one part, that is its result; else flexc_merge_parts makes one of several.
#include "mod.cuh"

#include "common/dependence.cuh"
#include "common/tile_walk.cuh"
#include "sm80/forward_mma.cuh"
#include "sm80/forward_output.cuh"
#include "sm80/hidden_scores.cuh"
#include "sm80/key_value_loader.cuh"
#include "sm80/key_value_scales.cuh"
#include "sm80/packed_rows.cuh"
#include "sm80/partial_results.cuh"
#include "sm80/score_mod.cuh"
#include "sm80/softmax.cuh"

using namespace sm80;

extern __shared__ __align__(128) unsigned char shared_memory[];

namespace {

constexpr int kBlockWarps = few_warps(kSizes);
constexpr int kWarpBytes = few_warp_bytes(kSizes);
static_assert(kLayout.stages + kBlockWarps * kWarpBytes <= mod::kSharedBytes);

__device__ int warp_index() { return static_cast<int>(threadIdx.y); }

// Queries, then each warp's stages, in which its results follow.
__device__ Shared shared_of(unsigned base, int warp) {
    return {base, base + kLayout.stages + warp * kWarpBytes};
}
__device__ Staging results_of(const Shared& shared) { return {shared.stages}; }

// The tiles of a part that are a warp's.
class TilesOfWarp {
  public:
    __device__ explicit TilesOfWarp(TileRange part)
        : tile_(part.begin + warp_index()), end_(part.end) {}

    __device__ bool is_done() const { return tile_ >= end_; }
    __device__ int tile() const { return tile_; }
    __device__ int step() const { return step_; }
    __device__ void advance() {
        tile_ += kBlockWarps;
        ++step_;
    }

  private:
    int tile_, end_, step_ = 0;
};

// Of the tile's rows, from first_row on, by all warps.
__device__ void load_queries(const AttentionArguments& attention, const SequenceLength& length,
                             QueryTile tile, int first_row, int row_count, int h_kv, int group) {
    const int thread = 32 * warp_index() + lane_index();
    constexpr int kBytes = kCopyBytes<Element, mod::kHeadDim>;
    const Plane<Element> first = query_plane<Element>(attention.q, length, h_kv * group);
    const long long head_bytes =
        attention.q.stride_h * static_cast<long long>(sizeof(Element)) * (group > 1);
    if (kBytes != 0 && first.aligned_to(kBytes) && head_bytes % (kBytes ? kBytes : 1) == 0) {
        constexpr int kColumns = kBytes ? kBytes / static_cast<int>(sizeof(Element)) : 1;
        constexpr int kPieces = mod::kHeadDim / kColumns;
        for (int i = thread; i < mod::kQueryTile * kPieces; i += 32 * kBlockWarps) {
            const int row = i / kPieces, column = i % kPieces * kColumns;
            const bool exists = first_row + row < row_count;
            const PackedRow at(exists ? first_row + row : 0, h_kv, group);
            copy_async<kBytes ? kBytes : 16>(
                tile.at(row, column),
                query_plane<Element>(attention.q, length, at.h).at(at.query, column), exists);
        }
        return;
    }
#pragma unroll 1
    for (int i = thread; i < mod::kQueryTile * mod::kHeadDim; i += 32 * kBlockWarps) {
        const int row = i / mod::kHeadDim, column = i % mod::kHeadDim;
        Element value = flexc_from_float<Element>(0);
        if (first_row + row < row_count) {
            const PackedRow at(first_row + row, h_kv, group);
            value = *query_plane<Element>(attention.q, length, at.h).at(at.query, column);
        }
        store_shared(tile.at(row, column), value);
    }
}

// Tiles of the keys that the rows see, divided evenly.
__device__ TileRange tiles_of_part(Positions seen, int keys, const PartOfRequest& at) {
    const TileRange all = tiles_between(seen, keys, mod::kKeyTile);
    const long long count = all.end - all.begin;
    return {all.begin + static_cast<int>(count * at.part / at.count),
            all.begin + static_cast<int>(count * (at.part + 1) / at.count)};
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
                           int h_kv, int group, int first_row, int row_count, unsigned base) {
    const PartialResults parts(attention);
    const float to_log2 = (scales_early(attention) ? 1 : attention.scale) * kLog2E;
    const int count = min(mod::kQueryTile, row_count - first_row);
    for (int own = warp_index(); own < count; own += kBlockWarps) {
        const WholeRow whole(kBlockWarps, to_log2, [&](int warp) {
            return RowOfWarp(results_of(shared_of(base, warp)).at(own, 0));
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

} // namespace

extern "C" __global__ void __launch_bounds__(32 * kBlockWarps, 3)
    flexc_forward_few(const __grid_constant__ KernelArguments attention,
                      const __grid_constant__ mod::Arguments arguments) {
    let_next_start();
    // Tiles of rows that meet the same keys are neighbours, then heads, as they are in pages.
    const int group = attention.heads / attention.kv_heads;
    const int tiles = (few_rows(attention.q_len, group) + mod::kQueryTile - 1) / mod::kQueryTile;
    const int place = static_cast<int>(blockIdx.x);
    const int h_kv = place / tiles % attention.kv_heads;
    const int part = place / tiles / attention.kv_heads;
    const PartOfRequest at = part_of_request(attention, part);
    if (at.count == 0) return;
    const SequenceLength length(attention, at.request);
    const int first_row = place % tiles * mod::kQueryTile;
    const int row_count = length.queries() * group;
    if (first_row >= row_count) return;
    const Shared shared = shared_of(shared_address(shared_memory), warp_index());
    const bool scale_early = scales_early(attention);

    const PackedRows rows(attention, arguments, length, first_row, row_count - 1, h_kv, group);
    const Surroundings around{attention, arguments, rows.row[0].place, length};
    TilesOfWarp walk(tiles_of_part(rows.keys(), length.keys(), at)), ahead = walk;
    KeyValueLoader<kThreads, KeyTile, ValueTile> loader(attention, length, h_kv, walk.tile());
    load_queries(attention, length, shared.queries(), first_row, row_count, h_kv, group);
    loader.start(shared, walk, walk.tile());
    commit_copies();
    ahead.advance();
    loader.start(shared, ahead, walk.tile());
    commit_copies();
    clear_padding(shared);

    Softmax softmax;
    KeyValueScales scales(attention, length, h_kv);
    Output output = {};
    softmax.start(scale_early ? 1 : attention.scale);
    wait_for_groups<1>();
    __syncthreads(); // all warps' pieces of the queries are there
    scales.apply_to_queries(shared.queries(), 0, warp_index() == 0);
    while (!walk.is_done()) {
        Scores scores;
        mma_qk(scores, shared.queries(), 0, shared.keys(walk.step()));
        scales.apply_to_scores(scores, shared, walk.step());
        const int first_kv = walk.tile() * mod::kKeyTile;
        const int last_kv = first_kv + mod::kKeyTile - 1;
        if (scale_early) apply_score_mod(scores, attention.scale, around, rows, first_kv);
        if (last_kv >= length.keys() || !rows.all_see(first_kv, last_kv))
            hide_scores(scores, around, rows, first_kv);
        softmax.update(scores, output);
        scales.apply_to_weights(scores, output, shared, walk.step());
        mma_pv(output, scores, shared.values(walk.step()));
        __syncwarp(); // everyone has left this tile, which makes room for the next but one
        walk = ahead;
        ahead.advance();
        loader.start(shared, ahead, walk.tile());
        commit_copies();
        wait_for_groups<1>();
        __syncwarp();
    }
    write_results(results_of(shared), softmax, output, scales.of_output());
    __syncthreads();
    store_rows(attention, arguments, length, at, part, h_kv, group, first_row, row_count,
               shared.base);
}

// A block makes the results of some rows of a request with few queries, where it has several parts,
// and clears rows that it does not use. Its warps join some parts each.
extern "C" __global__ void __launch_bounds__(32 * kMergingWarps)
    flexc_merge_parts(const __grid_constant__ KernelArguments attention,
                      const __grid_constant__ mod::Arguments arguments) {
    const int head = static_cast<int>(blockIdx.x) / kMergingBlocks;
    const int h_kv = head % attention.kv_heads, b = head / attention.kv_heads;
    const int group = attention.heads / attention.kv_heads;
    const SequenceLength length(attention, b);
    const int first_part = length.sequence().first_part;
    const int count = attention.sequences.of(b + 1).first_part - first_part;
    wait_for_kernel_ahead(); // also where nothing is read: what follows this kernel needs its
                             // results
    if (!has_few_rows(length.sequence(), group)) return;
    const PartialResults parts(attention);
    const float to_log2 = (scales_early(attention) ? 1 : attention.scale) * kLog2E;
    const int warp = warp_index(), first = count * warp / kMergingWarps,
              own = count * (warp + 1) / kMergingWarps - first;

    const long long rows = static_cast<long long>(length.query_rows()) * group;
    for (long long row = blockIdx.x % kMergingBlocks; row < rows; row += kMergingBlocks) {
        const PackedRow packed(static_cast<int>(row), h_kv, group);
        if (packed.query >= length.queries()) {
            if (warp == 0) clear_row(attention, length, packed);
            continue;
        }
        if (count < 2) continue;
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
