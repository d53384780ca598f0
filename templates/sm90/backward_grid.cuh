// Sums of dS over keys as a grid of kKeyWidth columns, by two warps of the producer's warpgroup:
// over the keys in a row of the grid for buffers that are read by kv // width, over those in a
// column for kv % width. The host sees to it that the tensor's first key starts a row.
#pragma once

#include "sm90/backward_gradients.cuh"
#include "sm90/backward_layout.cuh"

namespace sm90 {

constexpr int kKeyWidth = mod::kKeyWidth;

// The largest power of two up to 8 that divides the width: tiles start at multiples of 8, so that
// as many neighbouring keys are always in one row.
constexpr int kNeighbours = kKeyWidth % 8 == 0   ? 8
                            : kKeyWidth % 4 == 0 ? 4
                            : kKeyWidth % 2 == 0 ? 2
                                                 : 1;

// One warp's queries of a tile of dS, which has a row for each query, in panels of 64 keys.
struct GridSums {
    const AttentionArguments& attention;
    const mod::Arguments& arguments;
    const HeadPlace& place;
    const int first_key, keys; // of the tile: in the tensor, and how many there are

    static __device__ unsigned chunk_of(unsigned tile, int query, int key) {
        return tile + key / kPanelColumns * kQueryPanel + query * kRowBytes +
               ((key % kPanelColumns / 8) ^ (query % 8)) * 16;
    }

    // To what the reads of one kind name at a query and key of the tensor.
    __device__ void put(mod::Sum kind, int query, int key, float sum) const {
        const int q = query + static_cast<int>(attention.q_offset);
        const int kv = key + static_cast<int>(attention.kv_offset);
        const mod::Row row =
            mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q);
        const mod::Column column =
            mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv);
        const mod::At at{
            arguments, place.launch, place.head, row, column,  place.b, place.h, place.h_kv,
            q,         kv,           q,          kv,  nullptr, 0,       0,       nullptr};
#pragma unroll
        for (int gradient = 0; gradient < mod::kGradients; ++gradient)
            if (mod::sum_of(gradient) == kind) add(at, gradient, sum);
    }

    // A lane has a query, and goes through its keys.
    __device__ void add_quotients(unsigned tile, int tile_query, int warp) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
        for (int query = 32 * warp + lane; query < mod::kQueryTile; query += 32 * kSumWarps) {
            const bool exists = tile_query + query < attention.q_len;
            int row_start = 0, left = kKeyWidth - first_key % kKeyWidth;
            float sum = 0;
#pragma unroll 1
            for (int key = 0; key < keys; key += 8) {
                int words[4];
                load_shared(chunk_of(tile, query, key), words[0], words[1], words[2], words[3]);
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const auto word = static_cast<unsigned>(words[i / 2]);
                    sum += i % 2 == 0 ? flexc_first(mod::Element{}, word)
                                      : flexc_second(mod::Element{}, word);
                    if ((i + 1) % kNeighbours != 0) continue;
                    left -= kNeighbours;
                    if (left > 0) continue;
                    if (exists)
                        put(mod::Sum::quotient, tile_query + query, first_key + row_start, sum);
                    sum = 0;
                    row_start = key + i + 1;
                    left = kKeyWidth;
                }
            }
            // Keys past the end have added zeros.
            if (exists && row_start < keys)
                put(mod::Sum::quotient, tile_query + query, first_key + row_start, sum);
        }
    }

    // A lane has a column of the grid, counted from the tile's first key, of one of as many queries
    // as fit in a warp.
    __device__ void add_remainders(unsigned tile, int tile_query, int warp) const {
        constexpr int kTogether = kKeyWidth < 32 ? 32 / kKeyWidth : 1;
        constexpr int kQueriesOfWarp = mod::kQueryTile / kSumWarps;
        constexpr int kTurns = (mod::kKeyTile + kKeyWidth - 1) / kKeyWidth; // keys of a column
        constexpr int kInFlight =
            kTurns < 4 ? kTurns : 2; // the producer's warps have few registers
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int first = kTogether > 1 ? lane % kKeyWidth : lane;
        const int ahead = kTogether > 1 ? lane / kKeyWidth : 0;
        if (ahead >= kTogether) return;
#pragma unroll 1
        for (int column = first; column < kKeyWidth && column < keys; column += 32) {
#pragma unroll 1
            for (int i = ahead; i < kQueriesOfWarp; i += kTogether) {
                const int query = kQueriesOfWarp * warp + i;
                float sum = 0;
#pragma unroll kInFlight
                for (int turn = 0; turn < kTurns; ++turn) {
                    const int key = column + turn * kKeyWidth;
                    if (key < mod::kKeyTile)
                        sum += flexc_to_float(mod::Element{
                            load_shared_half(chunk_of(tile, query, key) + key % 8 * 2)});
                }
                if (tile_query + query < attention.q_len)
                    put(mod::Sum::remainder, tile_query + query, first_key + column, sum);
            }
        }
    }
};

// warp: which of the two.
__device__ inline void sum_grid(const AttentionArguments& attention,
                                const mod::Arguments& arguments, Shared shared, const KeyTile& keys,
                                int warp) {
    int stage = 0;
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        const GridSums sums{attention, arguments, place, keys.first_kv,
                            min(mod::kKeyTile, attention.kv_len - keys.first_kv)};
#pragma unroll 1
        for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done();
             walk.advance(), stage ^= 1) {
            __syncwarp(); // some lanes had no column to sum
            meet_at_d_scores();
            const unsigned d_scores = shared.base + at::kDScores + stage * kDScoresBytes;
            const int tile_query = walk.tile() * mod::kQueryTile;
            if constexpr (mod::kSumsQuotients) sums.add_quotients(d_scores, tile_query, warp);
            if constexpr (mod::kSumsRemainders) sums.add_remainders(d_scores, tile_query, warp);
        }
    });
}

} // namespace sm90
