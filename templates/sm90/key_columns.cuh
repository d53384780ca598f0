// What a program computes once for each key of a warp of the backward kernel.
#pragma once

#include "common/place.cuh"
#include "common/visible_bits.cuh"
#include "sm90/backward_lengths.cuh"
#include "sm90/backward_registers.cuh"

namespace sm90 {

// Of a warp's 16 keys, a thread has that of its lane / 4 and the 8th after it. What a mask alone
// needs, which is seldom, each lane holds for one key, if it is more than a word or registers are
// short.
class KeyColumns {
  public:
    __device__ KeyColumns(TileLength length, const mod::Arguments& arguments,
                          const HeadPlace& place, int warp_key, int lane) {
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
            const int key = kIsShared ? lane % 16 : lane / 4 + 8 * i;
            column_[i] = mod::at_column(arguments, place.launch, place.head, place.b, place.h,
                                        place.h_kv, length.kv_idx(warp_key + key));
        }
    }

    // Where masks alone need them, nothing.
    __device__ const mod::Column& of(int key) const { return column_[kIsShared ? 0 : key]; }

    // For the whole warp.
    __device__ void find(mod::Column (&own)[2], int lane) const {
#pragma unroll
        for (int i = 0; i < 2; ++i)
            own[i] = kIsShared ? shuffled(column_[0], lane / 4 + 8 * i) : column_[i % kHeld];
    }

  private:
    static constexpr bool kIsShared =
        kMaskIsLong && (kSaves.keys_again || sizeof(mod::Column) > sizeof(int));
    static constexpr int kHeld = kIsShared ? 1 : 2;
    mod::Column column_[kHeld];
};

} // namespace sm90
