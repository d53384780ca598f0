// Attention, forward, of requests with few queries: keys and values are read once, at the speed of
// memory, for the queries of all heads that share them.
//
// One warp computes 16 rows (packed_rows.cuh) over a part of the keys that they see. Where a
// request has one part, that is its result; else flexc_merge_parts makes one of several.
#include "mod.cuh"

#include "common/tile_walk.cuh"
#include "sm80/forward_mma.cuh"
#include "sm80/forward_output.cuh"
#include "sm80/hidden_scores.cuh"
#include "sm80/key_value_loader.cuh"
#include "sm80/packed_rows.cuh"
#include "sm80/partial_results.cuh"
#include "sm80/score_mod.cuh"
#include "sm80/softmax.cuh"

using namespace sm80;

extern __shared__ __align__(128) unsigned char shared_memory[];

namespace {

// Of the tile's rows, from first_row on.
__device__ void load_queries(const AttentionArguments& attention, const SequenceLength& length,
                             QueryTile tile, int first_row, int row_count, int h_kv, int group) {
    constexpr int kBytes = kCopyBytes<Element, mod::kHeadDim>;
    const Plane<Element> first = query_plane<Element>(attention.q, length, h_kv * group);
    const long long head_bytes =
        attention.q.stride_h * static_cast<long long>(sizeof(Element)) * (group > 1);
    if (kBytes != 0 && first.aligned_to(kBytes) && head_bytes % (kBytes ? kBytes : 1) == 0) {
        constexpr int kColumns = kBytes ? kBytes / static_cast<int>(sizeof(Element)) : 1;
        constexpr int kPieces = mod::kHeadDim / kColumns;
        for (int i = lane_index(); i < mod::kQueryTile * kPieces; i += 32) {
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
    for (int i = lane_index(); i < mod::kQueryTile * mod::kHeadDim; i += 32) {
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

// A row of results, which a warp holds in shared memory.
template <typename Visit> __device__ void for_columns(Visit visit) {
    for (int column = lane_index(); column < mod::kHeadDimV; column += 32)
        visit(column);
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

__device__ void store_rows_of_warp(const KernelArguments& attention,
                                   const mod::Arguments& arguments, const SequenceLength& length,
                                   const PartOfRequest& at, int part, int h_kv, int group,
                                   int first_row, int row_count, const Softmax& softmax,
                                   const Output& output, const Shared& shared) {
    const PartialResults parts(attention);
    const Staging staging{shared.base};
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
        const int own = 8 * i + lane / 4, row = first_row + own;
        const float sum = quad_sum(softmax.sum[i]);
        float factor = 1;
        if (at.count > 1) {
            if (lane % 4 == 0 && row < row_count) {
                parts.maximum(part, h_kv, row) = softmax.maximum[i];
                parts.sum(part, h_kv, row) = sum;
            }
        } else {
            const PackedRow packed(min(row, row_count - 1), h_kv, group);
            if (lane % 4 == 0 && row < row_count)
                factor = finish_row(attention, arguments, length, packed.h, packed.query,
                                    softmax.maximum[i], sum);
            factor = __shfl_sync(0xffffffffu, factor, lane / 4 * 4);
        }
#pragma unroll
        for (int column = 0; column < kValueColumns; ++column) {
            const float(&o)[4] = output[i / 2][column];
            store_shared(staging.at(own, 8 * column + lane % 4 * 2), o[i % 2 * 2] * factor,
                         o[i % 2 * 2 + 1] * factor);
        }
    }
    __syncwarp();
    const int count = min(mod::kQueryTile, row_count - first_row);
    for (int own = 0; own < count; ++own) {
        const int row = first_row + own;
        const PackedRow packed(row, h_kv, group);
        if (at.count > 1)
            for_columns([&](int column) {
                parts.output(part, h_kv, row)[column] = load_shared_float(staging.at(own, column));
            });
        else
            for_columns([&](int column) {
                store_row(attention, length, packed.h, packed.query, column,
                          load_shared_float(staging.at(own, column)));
            });
    }
    __syncwarp();
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flexc_forward_few(const __grid_constant__ KernelArguments attention,
                      const __grid_constant__ mod::Arguments arguments) {
    // Heads of one part are neighbours, as they are in pages.
    const int part = static_cast<int>(blockIdx.x) / attention.kv_heads;
    const int h_kv = static_cast<int>(blockIdx.x) % attention.kv_heads;
    const PartOfRequest at = part_of_request(attention, part);
    if (at.count == 0) return;
    const SequenceLength length(attention, at.request);
    const int group = attention.heads / attention.kv_heads;
    const int row_count = length.queries() * group;
    const Shared shared{shared_address(shared_memory)};
    const bool scale_early = scales_early(attention);

    for (int first_row = 0; first_row < row_count; first_row += mod::kQueryTile) {
        const PackedRows rows(attention, arguments, length, first_row, row_count - 1, h_kv, group);
        const Surroundings around{attention, arguments, rows.row[0].place, length};
        TileWalk walk(attention.block_mask, at.request, rows.row[0].h, 0,
                      tiles_of_part(rows.keys(), length.keys(), at));
        KeyValueLoader<kThreads, KeyTile, ValueTile> loader(attention, length, h_kv, walk.tile());
        load_queries(attention, length, shared.queries(), first_row, row_count, h_kv, group);
        clear_padding(shared);

        Softmax softmax;
        Output output = {};
        softmax.start(scale_early ? 1 : attention.scale);
        loader.start(shared, walk, walk.tile());
        while (!walk.is_done()) {
            TileWalk next = walk;
            next.advance();
            wait_for_copies();
            __syncwarp(); // this tile is here, and everyone has left the one before
            loader.start(shared, next, walk.tile());

            Scores scores;
            mma_qk(scores, shared.queries(), 0, shared.keys(walk.step()));
            const int first_kv = walk.tile() * mod::kKeyTile;
            const int last_kv = first_kv + mod::kKeyTile - 1;
            if (scale_early) apply_score_mod(scores, attention.scale, around, rows, first_kv);
            if (last_kv >= length.keys() || !rows.all_see(first_kv, last_kv))
                hide_scores(scores, around, rows, first_kv);
            softmax.update(scores, output);
            mma_pv(output, scores, shared.values(walk.step()));
            walk = next;
        }
        wait_for_copies();
        __syncwarp(); // the tiles make room for the output
        store_rows_of_warp(attention, arguments, length, at, part, h_kv, group, first_row,
                           row_count, softmax, output, shared);
    }
}

// One warp makes the results of each row of a request with few queries, where it has several parts,
// and clears rows that it does not use.
extern "C" __global__ void __launch_bounds__(128)
    flexc_merge_parts(const __grid_constant__ KernelArguments attention,
                      const __grid_constant__ mod::Arguments arguments) {
    constexpr int kBlocks = kMostFewRows / 4; // of a head of keys
    const int head = static_cast<int>(blockIdx.x) / kBlocks;
    const int h_kv = head % attention.kv_heads, b = head / attention.kv_heads;
    const int group = attention.heads / attention.kv_heads;
    const SequenceLength length(attention, b);
    const Sequence& sequence = length.sequence();
    if (!has_few_rows(sequence, group)) return;
    const int first_part = sequence.first_part;
    const int count = attention.sequences.of(b + 1).first_part - first_part;
    const PartialResults parts(attention);
    const float to_log2 = (scales_early(attention) ? 1 : attention.scale) * kLog2E;
    const int warp = static_cast<int>(threadIdx.x) / 32;

    const long long rows = static_cast<long long>(length.query_rows()) * group;
    for (long long row = blockIdx.x % kBlocks * 4 + warp; row < rows; row += kMostFewRows) {
        const PackedRow packed(static_cast<int>(row), h_kv, group);
        if (packed.query >= length.queries()) {
            if (attention.lse.data && lane_index() == 0)
                *query_plane<float>(attention.lse, length, packed.h).at(packed.query, 0) =
                    negative_infinity();
            for_columns([&](int column) {
                store_row(attention, length, packed.h, packed.query, column, 0);
            });
            continue;
        }
        if (count < 2) continue;
        const int own = static_cast<int>(row);
        float maximum = negative_infinity();
        for (int i = lane_index(); i < count; i += 32)
            maximum = fmaxf(maximum, parts.maximum(first_part + i, h_kv, own));
        maximum = warp_max(maximum);
        float sum = 0;
        constexpr int kColumns = (mod::kHeadDimV + 31) / 32;
        float output[kColumns] = {};
        // Loads of several parts are under way at once, also of those that have written no more
        // than that they saw nothing.
#pragma unroll 8
        for (int i = 0; i < count; ++i) {
            const float of_part = parts.maximum(first_part + i, h_kv, own);
            const float of_sum = parts.sum(first_part + i, h_kv, own);
            const float* const from = parts.output(first_part + i, h_kv, own);
            const bool sees = of_part != negative_infinity();
            const float weight = sees ? exp2_fast((of_part - maximum) * to_log2) : 0;
            sum += weight * of_sum;
#pragma unroll
            for (int column = 0; column < kColumns; ++column) {
                const int at = min(32 * column + lane_index(), mod::kHeadDimV - 1);
                output[column] += sees ? weight * from[at] : 0;
            }
        }
        float factor = 0;
        if (lane_index() == 0)
            factor = finish_row(attention, arguments, length, packed.h, packed.query, maximum, sum);
        factor = __shfl_sync(0xffffffffu, factor, 0);
#pragma unroll
        for (int column = 0; column < kColumns; ++column)
            if (32 * column + lane_index() < mod::kHeadDimV)
                store_row(attention, length, packed.h, packed.query, 32 * column + lane_index(),
                          factor * output[column]);
    }
}
