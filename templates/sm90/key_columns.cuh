// What a program computes once for each key of a warp of the backward kernel.
#pragma once

#include "common/place.cuh"
#include "common/visible_bits.cuh"
#include "sm90/backward_lengths.cuh"
#include "sm90/backward_registers.cuh"

namespace sm90 {

// A thread has the columns of two of its warp's 16 keys, lane / 4 and the eighth after it. Columns
// that a mask alone needs, which is seldom, are held by each lane for one key, if they are more
// than a word or registers are short.
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

    // Returns the column of one of the thread's keys; of no use where masks alone need columns.
    __device__ const mod::Column& of(int key) const { return column_[kIsShared ? 0 : key]; }

    // Called by the whole warp: finds the columns of the thread's two keys.
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
