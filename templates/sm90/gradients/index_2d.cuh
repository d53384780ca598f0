// Sums dS over a 2-D key index of kKeyWidth columns by two warps of the producer warpgroup: over
// the keys in a row of the 2-D key index for buffers that are read by kv // width, over those in a
// column for kv % width. The host sees to it that the tensor's first key starts a row. This is for
// any width; index_2d_mma.cuh is for tiles that are whole rows.
#pragma once

#include "sm90/backward_layout.cuh"
#include "sm90/gradients/sum.cuh"

namespace sm90 {

// The largest power of two up to 8 that divides the width: tiles start at multiples of 8, so that
// as many neighbouring keys are always in one row.
constexpr int kNeighbours = kKeyWidth % 8 == 0   ? 8
                            : kKeyWidth % 4 == 0 ? 4
                            : kKeyWidth % 2 == 0 ? 2
                                                 : 1;
// Rows that are no wider are summed for all their columns at once, in a thread's registers.
constexpr int kFewColumns = 16;
constexpr int kQueriesOfWarp = mod::kQueryTile / kSumWarps;

// One warp's queries of a tile of dS, which has a row for each query, in panels of 64 keys.
struct Index2dSums {
    const AttentionArguments& attention;
    const mod::Arguments& arguments;
    const HeadPlace& place;
    const int first_key, keys; // of the tile: in the tensor, and how many there are

    static __device__ unsigned chunk_of(unsigned tile, int query, int key) {
        return tile + key / kPanelColumns * kQueryPanel + query * kRowBytes +
               ((key % kPanelColumns / 8) ^ (query % 8)) * 16;
    }
    // Loads dS of eight neighbouring keys of a query.
    static __device__ void load_chunk(float (&d_scores)[8], unsigned tile, int query, int key) {
        int words[4];
        load_shared(chunk_of(tile, query, key), words[0], words[1], words[2], words[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const auto word = static_cast<unsigned>(words[i]);
            d_scores[2 * i] = flexc_first(mod::Element{}, word);
            d_scores[2 * i + 1] = flexc_second(mod::Element{}, word);
        }
    }

    // Calls visit(gradient, address) for the reads of one kind at a query and key of the tensor.
    template <typename Visit>
    __device__ void visit(mod::Sum kind, int query, int key, Visit visit_address) const {
        visit_element(attention, arguments, place, query, key, [&](const mod::At& at) {
#pragma unroll
            for (int gradient = 0; gradient < mod::kGradients; ++gradient)
                if (mod::ReadGradients::sum_of(gradient) == kind)
                    visit_address(gradient, mod::ReadGradients::address(at, gradient));
        });
    }
    __device__ void put(mod::Sum kind, int query, int key, float sum) const {
        if (sum == 0) return;
        visit(kind, query, key, [&](int, auto* to) {
            if (to != nullptr) flexc_accumulate(to, sum);
        });
    }
    // Adds sums to kCount neighbouring columns of the 2-D key index, from that of `key` on:
    // together if they lie side by side in memory.
    template <int kCount>
    __device__ void put_columns(int query, int key, const float (&sums)[kCount]) const {
        bool is_zero = true;
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            is_zero = is_zero && sums[i] == 0;
        if (is_zero) return;
        constexpr int kTogether = kCount % 4 == 0 ? 4 : 2;
        float* first[kGradientSlots] = {};
        bool together = mod::KeyIndex2d::kColumnsAreLinear && key + kCount <= first_key + keys;
        if (together) {
            visit(mod::Sum::remainder, query, key, [&](int gradient, auto* to) {
                first[gradient] = reinterpret_cast<float*>(to);
                together = together && to != nullptr &&
                           reinterpret_cast<unsigned long long>(to) % (4 * kTogether) == 0;
            });
            visit(mod::Sum::remainder, query, key + kCount - 1, [&](int gradient, auto* to) {
                together = together && reinterpret_cast<float*>(to) == first[gradient] + kCount - 1;
            });
        }
        if (together) {
#pragma unroll
            for (int gradient = 0; gradient < mod::kGradients; ++gradient)
                if (mod::ReadGradients::sum_of(gradient) == mod::Sum::remainder)
#pragma unroll
                    for (int i = 0; i < kCount; i += kTogether)
                        accumulate_together<kTogether>(first[gradient] + i, sums + i);
            return;
        }
#pragma unroll 1
        for (int i = 0; i < kCount && key + i < first_key + keys; ++i) {
            float sum = sums[0]; // an index that is not known would move all to memory
#pragma unroll
            for (int j = 1; j < kCount; ++j)
                sum = i == j ? sums[j] : sum;
            put(mod::Sum::remainder, query, key + i, sum);
        }
    }

    // A lane has a query, goes through its keys, and adds a sum for each row of the 2-D key index.
    __device__ void add_quotients(unsigned tile, int tile_query, int warp) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
        for (int query = 32 * warp + lane; query < mod::kQueryTile; query += 32 * kSumWarps) {
            const bool exists = tile_query + query < attention.q_len;
            int row_start = 0, left = kKeyWidth - first_key % kKeyWidth;
            float sum = 0;
#pragma unroll 2
            for (int key = 0; key < keys; key += 8) {
                float d_scores[8];
                load_chunk(d_scores, tile, query, key);
#pragma unroll
                for (int i = 0; i < 8; i += kNeighbours) {
                    sum += sum_of_neighbours(d_scores, i);
                    left -= kNeighbours;
                    if (left > 0) continue;
                    if (exists)
                        put(mod::Sum::quotient, tile_query + query, first_key + row_start, sum);
                    sum = 0;
                    row_start = key + i + kNeighbours;
                    left = kKeyWidth;
                }
            }
            // Keys past the end have added zeros.
            if (exists && row_start < keys)
                put(mod::Sum::quotient, tile_query + query, first_key + row_start, sum);
        }
    }

    __device__ void add_remainders(unsigned tile, int tile_query, int warp) const {
        if constexpr (kKeyWidth % 8 == 0)
            add_chunks(tile, tile_query, kQueriesOfWarp * warp, kQueriesOfWarp);
        else if constexpr (kKeyWidth <= kFewColumns)
            add_few_columns(tile, tile_query, warp);
        else
            add_columns(tile, tile_query, warp);
    }

    // A lane has eight columns of the 2-D key index, counted from the tile's first key, of one of
    // as many queries as fit in a warp.
    __device__ void add_chunks(unsigned tile, int tile_query, int begin, int count) const {
        constexpr int kChunks = (kKeyWidth + 7) / 8, kTileChunks = mod::kKeyTile / 8;
        constexpr int kLanes = kChunks < kTileChunks ? kChunks : kTileChunks; // of a query
        constexpr int kTogether = 32 / kLanes;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int chunk = lane % kLanes, ahead = lane / kLanes;
        if (ahead >= kTogether || 8 * chunk >= keys) return;
#pragma unroll 1
        for (int query = begin + ahead; query < begin + count; query += kTogether) {
            float sums[8] = {};
#pragma unroll
            for (int key = 8 * chunk, round = 0; round < (kTileChunks + kChunks - 1) / kChunks;
                 ++round, key += kKeyWidth) {
                if (mod::kKeyTile % kKeyWidth != 0 && key >= mod::kKeyTile) break;
                float d_scores[8];
                load_chunk(d_scores, tile, query, key);
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    sums[j] += d_scores[j];
            }
            if (tile_query + query < attention.q_len)
                put_columns(tile_query + query, first_key + 8 * chunk, sums);
        }
    }

  private:
    static __device__ float sum_of_neighbours(const float (&x)[8], int first) {
        float even = x[first], odd = kNeighbours > 1 ? x[first + 1] : 0;
#pragma unroll
        for (int i = 2; i < kNeighbours; i += 2) {
            even += x[first + i];
            odd += x[first + i + 1];
        }
        return even + odd;
    }

    // A lane has a query, and sums all columns while it goes through its keys.
    __device__ void add_few_columns(unsigned tile, int tile_query, int warp) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
        for (int i = lane; i < kQueriesOfWarp; i += 32) {
            const int query = kQueriesOfWarp * warp + i;
            float sums[kKeyWidth] = {}; // of columns counted from the tile's first key
#pragma unroll
            for (int key = 0; key < mod::kKeyTile; key += 8) {
                float d_scores[8];
                load_chunk(d_scores, tile, query, key);
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    sums[(key + j) % kKeyWidth] += d_scores[j];
            }
            if (tile_query + query >= attention.q_len) continue;
            // Tiles start with even keys. Sums move up, so that the code is there once.
            constexpr int kCount = kKeyWidth % 2 == 0 ? 2 : 1;
#pragma unroll 1
            for (int column = 0; column < kKeyWidth && column < keys; column += kCount) {
                if constexpr (kCount == 2)
                    put_columns(tile_query + query, first_key + column, {sums[0], sums[1]});
                else
                    put(mod::Sum::remainder, tile_query + query, first_key + column, sums[0]);
#pragma unroll
                for (int j = 0; j + kCount < kKeyWidth; ++j)
                    sums[j] = sums[j + kCount];
            }
        }
    }

    // A lane has a column of the 2-D key index, counted from the tile's first key.
    __device__ void add_columns(unsigned tile, int tile_query, int warp) const {
        constexpr int kRounds = (mod::kKeyTile + kKeyWidth - 1) / kKeyWidth; // keys of a column
        constexpr int kInFlight =
            kRounds < 4 ? kRounds : 2; // the producer's warps have few registers
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
        for (int column = lane; column < kKeyWidth && column < keys; column += 32) {
#pragma unroll 1
            for (int i = 0; i < kQueriesOfWarp; ++i) {
                const int query = kQueriesOfWarp * warp + i;
                float sum = 0;
#pragma unroll kInFlight
                for (int round = 0; round < kRounds; ++round) {
                    const int key = column + round * kKeyWidth;
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

} // namespace sm90
