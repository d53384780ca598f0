// Sums of dS over the diagonals of a tile, by two warps of the producer's warpgroup, for buffers
// whose indices use q - kv.
//
// A word of the tile has two neighbouring keys. At an even distance d, the word at key q - d of an
// even query is on diagonals d and d - 1; that at key q - d - 1 of an odd query on d + 1 and d. A
// lane takes the words at its own distance modulo the number of keys: one in every row, so that no
// load is wasted. Both of its distances are `first`, and as many keys more or less. With 64 keys,
// one warp has all distances, and each does half of the queries.
#pragma once

#include "sm90/backward_tiles.cuh"

namespace sm90 {

// Around an even distance.
struct DiagonalSums {
    float before = 0, at = 0, after = 0;

    __device__ void add(float even_at, float even_before, float odd_after, float odd_at) {
        at += even_at + odd_at;
        before += even_before;
        after += odd_after;
    }
    // `to` is of distance 0; a lane's neighbour has the next even distance.
    __device__ void flush(DistanceSum* to, int distance, int lowest, int highest) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const float next = __shfl_down_sync(0xffffffffu, before, 1);
        if (lane < 31) after += next;
        const auto put = [&](int where, float sum) {
            if (where >= lowest && where <= highest) flexc_accumulate(to + where, sum);
        };
        if (lane == 0) put(distance - 1, before);
        put(distance, at);
        put(distance + 1, after);
    }
};

// Of queries kBegin ... kEnd - 1. kUpper: the greater distances, or all. `first_distance`: of the
// tile's first query and first key.
template <bool kUpper, int kBegin, int kEnd>
__device__ inline void sum_tile(const AttentionArguments& attention, unsigned d_scores,
                                DistanceSum* to, int first_distance) {
    constexpr mod::Element kKind{};
    constexpr int kRowsAtOnce = 8; // loads in flight
    // The lower warp's other distances are beyond a tile of 64 queries and 128 keys.
    constexpr bool kHasOther = kUpper || mod::kQueryTile == 128;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int first = kUpper ? 2 * lane : 2 * lane - 64;
    DiagonalSums near, other;
#pragma unroll 1
    for (int q = kBegin; q < kEnd; q += kRowsAtOnce) {
        unsigned word[kRowsAtOnce];
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; ++i) {
            const int key = (q + i / 2 * 2 - first) & (mod::kKeyTile - 1);
            word[i] =
                load_shared_word(d_scores + key / kPanelColumns * kQueryPanel +
                                 (q + i) * kRowBytes + ((key % kPanelColumns * 2) ^ (i << 4)));
        }
#pragma unroll
        for (int i = 0; i < kRowsAtOnce; i += 2) {
            const int key = q + i - first;
            const bool is_near = !kHasOther || (kUpper ? key >= 0 : key < mod::kKeyTile);
            const auto add = [&](DiagonalSums& sums) {
                sums.add(flexc_first(kKind, word[i]), flexc_second(kKind, word[i]),
                         flexc_first(kKind, word[i + 1]), flexc_second(kKind, word[i + 1]));
            };
            if (is_near)
                add(near);
            else
                add(other);
        }
    }
    const int distance = first_distance + first;
    const int lowest = 1 - attention.kv_len, highest = attention.q_len - 1;
    near.flush(to, distance, lowest, highest);
    if constexpr (kHasOther)
        other.flush(to, distance + (kUpper ? -mod::kKeyTile : mod::kKeyTile), lowest, highest);
}

__device__ inline void sum_distances(const AttentionArguments& attention,
                                     const mod::Arguments& arguments, Shared shared,
                                     const KeyTile& keys, bool is_upper) {
    int stage = 0;
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        const long long head = place.b * attention.heads + place.h;
        DistanceSum* const to =
            distance_sums(attention) + padded(attention.kv_len) + head * distance_count(attention);
#pragma unroll 1
        for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done();
             walk.advance(), stage ^= 1) {
            __syncwarp(); // the lanes have summed different distances
            meet_at_d_scores();
            const unsigned d_scores = shared.base + at::kDScores + stage * kDScoresBytes;
            const int distance = walk.tile() * mod::kQueryTile - keys.first_kv;
            constexpr int kQueries = mod::kQueryTile, kFirst = kSharesKeys ? kQueries / 2 : 0;
            if (is_upper)
                sum_tile<true, kFirst, kQueries>(attention, d_scores, to, distance);
            else
                sum_tile<kSharesKeys, 0, kSharesKeys ? kFirst : kQueries>(attention, d_scores, to,
                                                                          distance);
        }
    });
}

} // namespace sm90
