// Sums of dS over keys as a grid where tiles of keys are whole rows of it: products with matrices
// of ones and zeros, which add 16 bits exactly into floats.
#pragma once

#include "sm80/mma.cuh"
#include "sm90/backward_grid.cuh"
#include "sm90/pack.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// One stage's tile of dS. A lane has two neighbouring columns of two queries that are eight apart,
// as products leave them; the matrices of ones and zeros are such that the next product has the two
// columns after these. A warp writes the sums of its queries to shared memory, in the order that
// most buffers have, and the copy engine adds them.
struct GridProducts {
    const GridSums& sums;
    const unsigned d_scores;
    const int first_query;  // of the warp, in the tile
    const int query;        // of the warp's first, in the tensor
    const unsigned columns; // the warp's sums, in shared memory

    __device__ void add() const {
        if constexpr (mod::kSumsRemainders) wait_until_added();
#pragma unroll 1
        for (int i = 0; i < kQueriesOfWarp; i += 16) {
            read_again(sums.attention);
            read_again(sums.arguments);
            add_queries(i);
        }
        if constexpr (mod::kSumsRemainders) {
            publish_shared();
            __syncwarp();
#pragma unroll 1
            for (int i = 0; i < kQueriesOfWarp; i += 32)
                add_columns(i);
            end_additions();
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

    // That gives every lane, as columns 2 t and 2 t + 1, keys 4 t + 2 half and the next.
    static __device__ B columns_of(int half) {
        const int g = lane() / 4, t = lane() % 4;
        const int key = g / 2 * 4 + 2 * half + g % 2;
        return {{ones(2 * t == key, 2 * t + 1 == key), ones(2 * t + 8 == key, 2 * t + 9 == key)}};
    }

    __device__ void add_queries(int first) const {
        const int g = lane() / 4, t = lane() % 4;
        const B halves[2] = {columns_of(0), columns_of(1)};
        float of_rows[4] = {};
#pragma unroll
        for (int column = 0; column < kKeyWidth; column += 16) {
            float of_columns[2][4] = {}; // of eight columns of the grid each
#pragma unroll
            for (int row = 0; row < kRows; ++row) {
                A tile;
                sm80::load_matrices(tile.registers,
                                    GridSums::chunk_of(d_scores, first_query + first + lane() % 16,
                                                       row * kKeyWidth + column + lane() / 16 * 8));
                if constexpr (mod::kSumsRemainders) {
                    sm80::multiply(of_columns[0], tile, halves[0]);
                    sm80::multiply(of_columns[1], tile, halves[1]);
                }
                if constexpr (mod::kSumsQuotients) {
                    const unsigned of_row = ones(row_of(g) == row, row_of(g) == row);
                    sm80::multiply(of_rows, tile, B{{of_row, of_row}});
                }
            }
            if constexpr (mod::kSumsRemainders)
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    store_shared(columns + (first + g + 8 * r) * kSumsRowBytes +
                                     4 * (column + 4 * t),
                                 of_columns[0][2 * r], of_columns[0][2 * r + 1],
                                 of_columns[1][2 * r], of_columns[1][2 * r + 1]);
        }
        if constexpr (mod::kSumsQuotients) put_rows(query + first + g, of_rows);
    }

    // Until the copy engine has read what it was to add.
    static __device__ void wait_until_added() {
        wait_for_additions<0>();
        __syncwarp();
    }

    // Of 32 queries: a lane has one of them, or the first has all where they are one piece of
    // memory.
    __device__ void add_columns(int band) const {
        const int count = min(sums.attention.q_len - query - band, 32);
        if (count <= 0) return;
        const unsigned from = columns + band * kSumsRowBytes;
        const int q = query + band + min(lane(), count - 1), width = min(kKeyWidth, sums.keys);
        float* first[kGradientSlots] = {};
        bool in_row = mod::kColumnsAreLinear && width == kKeyWidth;
        sums.visit(mod::Sum::remainder, q, sums.first_key, [&](int gradient, auto* to) {
            first[gradient] = reinterpret_cast<float*>(to);
            in_row = in_row && to != nullptr && reinterpret_cast<unsigned long long>(to) % 16 == 0;
        });
        sums.visit(mod::Sum::remainder, q, sums.first_key + width - 1, [&](int gradient, auto* to) {
            in_row = in_row && reinterpret_cast<float*>(to) == first[gradient] + kKeyWidth - 1;
        });
        if (__all_sync(0xffffffffu, in_row)) {
#pragma unroll
            for (int gradient = 0; gradient < mod::kGradients; ++gradient)
                if (mod::sum_of(gradient) == mod::Sum::remainder)
                    add_rows(first[gradient], from, count);
        } else if (lane() < count) {
            put_columns(q, from + lane() * kSumsRowBytes, width);
        }
        __syncwarp();
    }
    // to: where the lane's query starts.
    static __device__ void add_rows(float* to, unsigned from, int count) {
        const auto of_first = __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(to), 0);
        const bool follows = lane() >= count || reinterpret_cast<unsigned long long>(to) ==
                                                    of_first + lane() * kSumsRowBytes;
        if (__all_sync(0xffffffffu, follows)) {
            if (lane() == 0) add_bytes(to, from, count * kSumsRowBytes);
        } else if (lane() < count) {
            add_bytes(to, from + lane() * kSumsRowBytes, kSumsRowBytes);
        }
    }
    __device__ void put_columns(int q, unsigned from, int width) const {
#pragma unroll 1
        for (int column = 0; column < width; ++column)
            sums.put(mod::Sum::remainder, q, sums.first_key + column,
                     __uint_as_float(load_shared_word(from + 4 * column)));
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
                const int first = kQueriesOfWarp * warp;
                GridProducts{sums, d_scores, first, tile_query + first,
                             shared.base + at::kSums + first * kSumsRowBytes}
                    .add();
            } else {
                if constexpr (mod::kSumsQuotients) sums.add_quotients(d_scores, tile_query, warp);
                if constexpr (mod::kSumsRemainders) sums.add_remainders(d_scores, tile_query, warp);
            }
        }
    });
}

} // namespace sm90
