// Gradients of tables, or by distance, which two warps of the producer warpgroup sum from a tile of
// 16-bit numbers: that of dS or, where what elements add is no multiple of dS, one of its own,
// which consumer threads store here.
#pragma once

#include "sm90/backward_fragments.cuh"
#include "sm90/gradients/sum.cuh"

namespace sm90 {

// A thread's elements of a tile. Each warp stores its 16 keys, of 16 queries at once.
class StoredWeightedTile {
  public:
    // Begins a tile, whose stage has this address.
    __device__ void use_weighted(unsigned tile) {
        const int lane = lane_again(), warp = static_cast<int>(threadIdx.x) / 32 - 4;
        const int chunk = (2 * (warp % 4) + lane / 8 % 2) ^ (lane % 8);
        to_ = tile + warp / 4 * kQueryPanel + (lane % 8 + lane / 16 * 8) * kRowBytes + chunk * 16;
    }
    // Adds the element of a key and the thread's j-th query; queries come in order.
    __device__ void add_weighted(float d_read, int key, int j) {
        if (j % 2 == 0) {
            even_[key] = d_read;
            return;
        }
        words_[j / 2 % 2][key] = pack(SummedElement{}, even_[key], d_read);
        if (j % 4 == 3 && key == 1)
            store(j / 4, words_[0][0], words_[0][1], words_[1][0], words_[1][1]);
    }
    // Stores zeros for the thread's queries from the j-th on, a multiple of four.
    __device__ void clear_weighted_from(int j) const {
#pragma unroll
        for (int i = j / 4; i < kScoreQueries / 16; ++i)
            store(i, 0, 0, 0, 0);
    }

  private:
    __device__ void store(int sixteen, unsigned a, unsigned b, unsigned c, unsigned d) const {
        store_transposed(to_ + sixteen * 16 * kRowBytes, a, b, c, d);
    }

    unsigned to_; // the row that this lane provides of 8 x 8 matrices
    float even_[2];
    unsigned words_[2][2]; // of eight queries and a key
};
struct NoWeightedTile {
    __device__ void use_weighted(unsigned) {}
    __device__ void add_weighted(float, int, int) {}
    __device__ void clear_weighted_from(int) const {}
};
// A base of what threads sum: compilers choose other registers even for a reference to an object
// that has nothing.
using WeightedTile = Select<kHasWeightedTile, StoredWeightedTile, NoWeightedTile>;

struct WeightedSum : NoSum {
    template <typename Sums>
    static __device__ void add(int gradient, float d_read, const mod::At&, int key, int j,
                               Sums& sums) {
        if (gradient == mod::ReadGradients::kWeighted) sums.registers.add_weighted(d_read, key, j);
    }
};
template <> struct SumOf<mod::Sum::table> : WeightedSum {};
template <> struct SumOf<mod::Sum::distance> : WeightedSum {};

} // namespace sm90
