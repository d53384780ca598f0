// Sums of dS over keys as a grid where tiles of keys are whole rows of it: products with matrices
// of ones and zeros, which add 16 bits exactly into floats.
#pragma once

#include "sm80/mma.cuh"
#include "sm90/backward_grid.cuh"
#include "sm90/pack.cuh"

namespace sm90 {

// Where the warps that sum have registers for it.
constexpr bool kSumsByProducts =
    kSumsGrid && kSparesRegisters && mod::kKeyTile % kKeyWidth == 0 && kKeyWidth % 16 == 0;

// One stage's tile of dS. A lane has two neighbouring columns of two queries that are eight apart,
// as products leave them.
struct GridProducts {
    const GridSums& sums;
    const unsigned d_scores;
    const int tile_query;

    __device__ void add(int warp) const {
#pragma unroll 1
        for (int i = 0; i < kQueriesOfWarp; i += 16) {
            read_again(sums.attention);
            read_again(sums.arguments);
            add_queries(kQueriesOfWarp * warp + i);
        }
    }

  private:
    using A = sm80::OperandA<mod::Element>;
    using B = sm80::OperandB<mod::Element>;
    static constexpr int kRows = mod::kKeyTile / kKeyWidth; // of the grid
    // Lanes that have the same queries share the rows of the grid: as many columns of a product are
    // one row.
    static constexpr int kSharing = kRows <= 2 ? 2 : 8 / kRows;

    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
    static __device__ unsigned ones(bool low, bool high) {
        return pack(mod::Element{}, low ? 1.0f : 0.0f, high ? 1.0f : 0.0f);
    }
    // Which row of the grid a column of the products for rows is.
    static __device__ int row_of(int column) { return column / kSharing % kRows; }

    __device__ void add_queries(int first) const {
        const int g = lane() / 4, t = lane() % 4, query = tile_query + first + g;
        const unsigned same = ones(2 * t == g, 2 * t + 1 == g);
        const B left_keys{{same, 0}}, right_keys{{0, same}};
        float* columns[2][kGradientSlots];
        bool together = mod::kSumsRemainders;
        if constexpr (mod::kSumsRemainders) {
            together = __all_sync(0xffffffffu, find_columns(columns, query));
            if (!together) sums.add_chunks(d_scores, tile_query, first, 16);
            __syncwarp();
        }
        float of_rows[4] = {};
#pragma unroll 1
        for (int column = 0; column < kKeyWidth; column += 16) {
            float of_columns[2][4] = {}; // of eight columns of the grid each
#pragma unroll
            for (int row = 0; row < kRows; ++row) {
                A tile;
                sm80::load_matrices(tile.registers,
                                    GridSums::chunk_of(d_scores, first + lane() % 16,
                                                       row * kKeyWidth + column + lane() / 16 * 8));
                if constexpr (mod::kSumsRemainders) {
                    sm80::multiply(of_columns[0], tile, left_keys);
                    sm80::multiply(of_columns[1], tile, right_keys);
                }
                if constexpr (mod::kSumsQuotients) {
                    const unsigned of_row = ones(row_of(g) == row, row_of(g) == row);
                    sm80::multiply(of_rows, tile, B{{of_row, of_row}});
                }
            }
            if (together)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    put_columns(columns, query, column + 8 * half + 2 * t, of_columns[half]);
        }
        if constexpr (mod::kSumsQuotients) put_rows(query, of_rows);
    }

    // Where the grid's first column is, of both queries. False where it has columns that are not
    // side by side in memory, or without keys.
    __device__ bool find_columns(float* (&columns)[2][kGradientSlots], int query) const {
        bool together = sums.keys >= kKeyWidth;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int q = min(query + 8 * r, sums.attention.q_len - 1);
            sums.visit(mod::Sum::remainder, q, sums.first_key, [&](int gradient, auto* to) {
                columns[r][gradient] = reinterpret_cast<float*>(to);
                together =
                    together && to != nullptr && reinterpret_cast<unsigned long long>(to) % 8 == 0;
            });
            const int last = sums.first_key + min(kKeyWidth, sums.keys) - 1;
            sums.visit(mod::Sum::remainder, q, last, [&](int gradient, auto* to) {
                together = together &&
                           reinterpret_cast<float*>(to) == columns[r][gradient] + kKeyWidth - 1;
            });
        }
        return together;
    }
    // Two columns of both queries.
    __device__ void put_columns(float* const (&columns)[2][kGradientSlots], int query, int column,
                                const float (&x)[4]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            if (query + 8 * r < sums.attention.q_len)
#pragma unroll
                for (int gradient = 0; gradient < mod::kGradients; ++gradient)
                    if (mod::sum_of(gradient) == mod::Sum::remainder)
                        accumulate_together<2>(columns[r][gradient] + column, x + 2 * r);
    }

    // Each sum by one of the lanes and registers that have it.
    __device__ void put_rows(int query, const float (&x)[4]) const {
        constexpr int kPuts = kRows <= 2 ? 1 : kRows / 2;
        const int t = lane() % 4;
#pragma unroll
        for (int i = 0; i < kPuts; ++i) {
            // Registers 0 and 1 are of the first query, 2 and 3 of the other.
            const int r = kPuts == 1 ? t / kRows : i * 2 / kPuts;
            const int of_pair = kPuts == 4 ? i % 2 : 0;
            const float sum = r == 0 ? x[of_pair] : x[2 + of_pair];
            const int row = row_of(2 * t + of_pair);
            const bool has_one = kPuts > 1 || r < 2;
            if (has_one && query + 8 * r < sums.attention.q_len && row * kKeyWidth < sums.keys)
                sums.put(mod::Sum::quotient, query + 8 * r, sums.first_key + row * kKeyWidth, sum);
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
            if constexpr (kSumsByProducts) {
                GridProducts{sums, d_scores, tile_query}.add(warp);
            } else {
                if constexpr (mod::kSumsQuotients) sums.add_quotients(d_scores, tile_query, warp);
                if constexpr (mod::kSumsRemainders) sums.add_remainders(d_scores, tile_query, warp);
            }
        }
    });
}

} // namespace sm90
