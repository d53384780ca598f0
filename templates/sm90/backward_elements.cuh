// A thread's elements in tiles of biases that are in shared memory: biases, and the gradient of
// dense ones.
#pragma once

#include "common/place.cuh"
#include "common/select.h"
#include "sm90/backward_layout.cuh"
#include "sm90/shifted_tile.cuh"

namespace sm90 {

// Return the accumulator of a thread's key (0 or 1) and its j-th query, and the distance of that
// query from the thread's first. A thread's keys are eight apart.
constexpr __device__ int accumulator(int key, int j) { return j / 2 * 4 + 2 * key + j % 2; }
constexpr __device__ int query_of(int j) { return j / 2 * 8 + j % 2; }

// What the copied dense bias holds at a thread's elements of two neighbouring queries.
struct BiasPair {
    float of[2][2]; // [query of the two][key]
};
// Loads 16-bit biases by a whole warp. from: address of the row that this lane provides of two 8 x
// 8 matrices of queries and keys.
template <typename E>
__device__ inline void load_bias_pair(E kind, unsigned from, BiasPair& biases) {
    unsigned words[2];
    load_transposed(from, words);
#pragma unroll
    for (int key = 0; key < 2; ++key) {
        biases.of[0][key] = flexc_first(kind, words[key]);
        biases.of[1][key] = flexc_second(kind, words[key]);
    }
}
// Loads float biases. from: address of the thread's first element.
__device__ inline void load_bias_pair(float, unsigned from, BiasPair& biases) {
#pragma unroll
    for (int side = 0; side < 2; ++side)
#pragma unroll
        for (int key = 0; key < 2; ++key)
            biases.of[side][key] =
                __uint_as_float(load_shared_word(from + side * kBiasRowBytes + key * 32));
}

// Where a thread finds its elements of the copied bias. warp_key: the warp's first key in the tile.
class DensePairs {
  public:
    __device__ DensePairs(const AttentionArguments&, const mod::Arguments&, const HeadPlace&) {}
    __device__ void use(unsigned biases, int warp_key) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int query = lane % 4 * 2, key = warp_key + lane / 4;
        from_ = kBiasBytes == 2 ? biases + lane % 8 * kBiasRowBytes +
                                      (warp_key + lane / 8 % 2 * 8) * kBiasBytes
                                : biases + query * kBiasRowBytes + key * kBiasBytes;
    }
    __device__ BiasPair load(int pair) const {
        BiasPair biases{};
        if constexpr (kCopiesBiases)
            load_bias_pair(mod::DenseBias::Element{}, from_ + 8 * pair * kBiasRowBytes, biases);
        return biases;
    }

  private:
    unsigned from_; // in shared memory
};

template <int kRead> class ShiftedPairs;
#ifdef FLEXC_HAS_SHIFTED_READS

template <int kRead> class ShiftedPairs {
    using Tile = ShiftedTile<kRead>;
    static constexpr bool kByKey = Tile::Read::kByKey;

  public:
    __device__ ShiftedPairs(const AttentionArguments& attention, const mod::Arguments& arguments,
                            const HeadPlace& place) {
        const ShiftedHead<kRead> head(attention, arguments, place);
        pitch_ = head.pitch();
        origin_ = head.origin();
    }
    __device__ void use(unsigned biases, int warp_key) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int query = lane % 4 * 2, key = warp_key + lane / 4;
        from_ = biases + origin_ + (kByKey ? key : query) * pitch_ +
                Tile::place_of(kByKey ? query : key) * Tile::kBytes;
    }
    __device__ BiasPair load(int pair) const {
        BiasPair biases;
#pragma unroll
        for (int side = 0; side < 2; ++side)
#pragma unroll
            for (int key = 0; key < 2; ++key)
                biases.of[side][key] = load_shared_element(
                    from_ + gain(8 * pair + side, 8 * key), typename Tile::Element{});
        return biases;
    }

  private:
    __device__ unsigned gain(int queries, int keys) const {
        return (kByKey ? keys : queries) * pitch_ +
               (kByKey ? queries : keys) * Tile::kAlong * Tile::kBytes;
    }

    unsigned pitch_, origin_; // of the head
    unsigned from_;           // in shared memory
};

#endif

class TileBiases {
  public:
    __device__ TileBiases(const AttentionArguments& attention, const mod::Arguments& arguments,
                          const HeadPlace& place)
        : pairs_(attention, arguments, place) {}
    // biases, gradient: addresses of the tile of biases, and of the gradient of the warpgroup's
    // keys.
    __device__ void use(unsigned biases, unsigned gradient, int warp_key) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        pairs_.use(biases, warp_key);
        gradient_ = gradient + lane % 4 * 2 * kGradientRowBytes + (warp_key + lane / 4) % 64 * 4;
    }
    __device__ BiasPair load(int pair) const { return pairs_.load(pair); }
    // Stores dS of one part of the tile's queries.
    template <int kCount>
    __device__ void store_part(const float (&d_scores)[kCount], int part) const {
        constexpr int kQueries = kPartRows / 4; // of a thread
#pragma unroll
        for (int j = 0; j < kQueries; ++j)
#pragma unroll
            for (int key = 0; key < 2; ++key)
                store(query_of(j), 8 * key, d_scores[accumulator(key, kQueries * part + j)]);
    }
    // Stores the gradient of the element that is `query` queries and `key` keys behind the thread's
    // first.
    __device__ void store(int query, int key, float d_bias) const {
        asm volatile(
            "st.shared.f32 [%0], %1;" ::"r"(gradient_ + query * kGradientRowBytes + key * 4),
            "f"(d_bias)
            : "memory");
    }

  private:
    Select<kBiasIsShifted, ShiftedPairs<0>, DensePairs> pairs_;
    unsigned gradient_; // in shared memory
};

} // namespace sm90
