// A thread's elements in tiles of dense biases that are in shared memory: biases, and their
// gradient.
#pragma once

#include "sm90/backward_layout.cuh"

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

class TileBiases {
  public:
    TileBiases() = default;
    // biases, gradient: addresses of the tile of biases, and of the gradient of the warpgroup's
    // keys. warp_key: the warp's first key in the tile.
    __device__ TileBiases(unsigned biases, unsigned gradient, int warp_key) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int query = lane % 4 * 2, key = warp_key + lane / 4;
        biases_ = kBiasBytes == 2 ? biases + lane % 8 * kBiasRowBytes +
                                        (warp_key + lane / 8 % 2 * 8) * kBiasBytes
                                  : biases + query * kBiasRowBytes + key * kBiasBytes;
        gradient_ = gradient + query * kGradientRowBytes + key % 64 * 4;
    }

    __device__ BiasPair load(int pair) const {
        BiasPair biases{};
        if constexpr (kCopiesBiases)
            load_bias_pair(mod::DenseBias::Element{}, biases_ + 8 * pair * kBiasRowBytes, biases);
        return biases;
    }
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
    unsigned biases_, gradient_; // in shared memory
};

} // namespace sm90
