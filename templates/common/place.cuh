// Where a block works, and which part of the other sequence its rows can see.
#pragma once

#include "common/arguments.h"
#include "mod.cuh"

constexpr int kAnyDistance = 1 << 30; // no two positions are this far apart

// One (b, h) with what the program computes once for it. Positions here are rows of the tensors;
// the program sees them shifted by the call's offsets.
struct HeadPlace {
    int b, h, h_kv;
    mod::Launch launch;
    mod::Head head;
    int low, high; // visible elements have low <= kv - q <= high

    __device__ HeadPlace(const AttentionArguments& attention, const mod::Arguments& arguments,
                         int index)
        : b(index / attention.heads), h(index % attention.heads),
          h_kv(h / (attention.heads / attention.kv_heads)), launch(mod::at_launch(arguments)),
          head(mod::at_head(arguments, launch, b, h, h_kv)), low(-kAnyDistance),
          high(kAnyDistance) {
        if constexpr (mod::kHasBand) {
            const mod::Band band = mod::band(arguments, launch, head, b, h, h_kv);
            const long long shift = attention.q_offset - attention.kv_offset;
            low = distance(band.low, shift);
            high = distance(band.high, shift);
        }
    }

    // The same place, with what another thread found out.
    __device__ HeadPlace(const mod::Arguments& arguments, int batch, int head_index, int kv_head,
                         int lowest, int highest)
        : b(batch), h(head_index), h_kv(kv_head), launch(mod::at_launch(arguments)),
          head(mod::at_head(arguments, launch, b, h, h_kv)), low(lowest), high(highest) {}

    // Whether every pair of these ranges (ends included) is inside the band.
    __device__ bool band_holds(int first_q, int last_q, int first_kv, int last_kv) const {
        return first_kv - last_q >= low && last_kv - first_q <= high;
    }

  private:
    // Saturates before and after the shift: a bound may be as far out as a program can write it.
    static __device__ int distance(long long bound, long long shift) {
        constexpr long long kFar = 1ll << 60, kAny = kAnyDistance;
        bound = (bound < -kFar ? -kFar : bound > kFar ? kFar : bound) + shift;
        return static_cast<int>(bound < -kAny ? -kAny : bound > kAny ? kAny : bound);
    }
};

// Tiles [begin, end) of `tile` positions each.
struct TileRange {
    int begin, end;
};
// Those that hold positions first ... last, clipped to [0, length).
__device__ inline TileRange tiles_between(int first, int last, int length, int tile) {
    first = first < 0 ? 0 : first;
    last = last >= length ? length - 1 : last;
    if (first > last) return {0, 0};
    return {first / tile, last / tile + 1};
}
