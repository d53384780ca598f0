// A thread's scores as MMAs leave them and take them, and which of them a mask hides.
#pragma once

#include "common/select.h"
#include "sm90/backward_elements.cuh"
#include "sm90/backward_registers.cuh"
#include "sm90/pack.cuh"

namespace sm90 {

constexpr int kScores = kScoreQueries / 2; // accumulators of a thread
constexpr int kQueries = kScores / 2;      // queries of a thread
using Scores = float[kScores];
using Fragments = unsigned[kScoreQueries / 16][4]; // left operands, 16 queries each

template <int kCount> __device__ inline void to_fragments(Fragments& to, const float (&x)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i)
        to[i / 4][i % 4] = pack(mod::Element{}, x[2 * i], x[2 * i + 1]);
}

// Which of a thread's elements are visible: all, or those whose bits are set, one for each of its
// queries and two keys.
struct BitsByKey {
    bool hides;
    unsigned visible[2];

    __device__ void show_all() {}
    __device__ void pack() {} // called when visible[] is found for each key
    __device__ bool hides_any() const { return hides; }
    __device__ bool shows(int key, int query) const { return (visible[key] & 1u << query) != 0; }
};
// With long masks both keys share a word where the bits fit, so that one comparison says whether
// anything is hidden.
struct BitsInOneWord : BitsByKey {
    __device__ void show_all() { visible[0] = ~0u; }
    __device__ void pack() { visible[0] = (visible[0] & 0xffffu) | visible[1] << 16; }
    __device__ bool hides_any() const { return visible[0] != ~0u; }
    __device__ bool shows(int key, int query) const {
        return (visible[0] & 1u << (16 * key + query)) != 0;
    }
};
using VisibleBits = Select<kEvaluatesMaskBetween && kQueries <= 16, BitsInOneWord, BitsByKey>;

// Set hidden elements to zero.
__device__ inline void hide(Scores& scores, const VisibleBits& visible_bits) {
#pragma unroll
    for (int key = 0; key < 2; ++key)
#pragma unroll
        for (int j = 0; j < kQueries; ++j)
            if (!visible_bits.shows(key, j)) scores[accumulator(key, j)] = 0;
}
__device__ inline void hide(Fragments& p, const VisibleBits& visible_bits) {
#pragma unroll
    for (int j = 0; j < kQueries; ++j)
#pragma unroll
        for (int key = 0; key < 2; ++key)
            if (!visible_bits.shows(key, j)) {
                const int word = accumulator(key, j) / 2;
                p[word / 4][word % 4] &= j % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
            }
}

} // namespace sm90
