// Which keys of a tile the rows of a warp of the forward kernel see.
#pragma once

#include "common/place.cuh"
#include "common/visible_bits.cuh"

namespace sm90 {

// Of one thread: its two rows, and in each eight keys two. Knows nothing of scores.
class VisibleKeys {
  public:
    static constexpr bool kMaskIsBand = !mod::kHasMask || (mod::kHasBand && mod::kBandIsExact);

    // rows: what the program computes once for each of the thread's rows. Given again to find(): a
    // reference to what lies beside this object would keep both in memory.
    __device__ VisibleKeys(const SequenceLength& length, const mod::Arguments& arguments,
                           const HeadPlace& place, const mod::Row (&rows)[2], int warp_row,
                           int lane)
        : length_(length), arguments_(arguments), place_(place), warp_row_(warp_row),
          first_row_(warp_row + lane / 4), first_column_(lane % 4 * 2) {
        if constexpr (kRepeats)
            repeating_.fill([&](unsigned(&bits)[2], int tile) {
                meet_parts<true>(bits, tile * mod::kKeyTile, rows);
            });
    }

    // Whether the warp sees all of a tile; for the whole warp. mask_shows_all: the block mask says
    // so.
    __device__ bool are_all(int first_key, bool mask_shows_all) const {
        const int last_key = first_key + mod::kKeyTile - 1;
        if (last_key >= length_.keys()) return false;
        if (!mod::kHasMask || mask_shows_all) return true;
        return kMaskIsBand && place_.band_holds(warp_row_, warp_row_ + 15, first_key, last_key);
    }

    // One bit for each of the thread's columns in each of its rows: comparisons of each element
    // would cost twice as much, and scores in registers would ask for them to be unrolled.
    __device__ void find(unsigned (&visible)[2], int first_key, const mod::Row (&rows)[2]) const {
        visible[0] = in_band(0, first_key);
        visible[1] = in_band(1, first_key);
        if constexpr (!kMaskIsBand) meet_parts<false>(visible, first_key, rows);
        if constexpr (kRepeats) repeating_.meet(visible, first_key / mod::kKeyTile);
    }

  private:
    static constexpr bool kRepeats = !kMaskIsBand && RepeatingBits::kPeriod != 0;

    // Of a row, inside the mask's band and the keys' length.
    __device__ unsigned in_band(int r, int first_key) const {
        const int row = first_row_ + 8 * r, first = first_key + first_column_;
        int last = length_.keys() - 1;
        if constexpr (mod::kHasBand) last = min(place_.last_key(row), last);
        unsigned visible = bits_to(last - first);
        if constexpr (mod::kHasBand && mod::kBandHasLow)
            visible &= ~bits_to(max(place_.first_key(row), 0) - 1 - first);
        return visible;
    }

    // What every part of the mask shows: of those that repeat, or of the others.
    template <bool kRepeating>
    __device__ void meet_parts(unsigned (&visible)[2], int first_key,
                               const mod::Row (&rows)[2]) const {
        constexpr int kWords = (mod::kKeyTile + 31) / 32;
        const int lane = static_cast<int>(threadIdx.x) % 32;
        int kv[kWords];
        mod::Column columns[kWords];
#pragma unroll
        for (int word = 0; word < kWords; ++word) {
            kv[word] = length_.kv_idx(first_key + 32 * word + lane);
            columns[word] = mod::at_column(arguments_, place_.launch, place_.head, place_.b,
                                           place_.h, place_.h_kv, kv[word]);
        }
        const auto q_of = [&](int index) { return length_.q_idx(warp_row_ + index); };
        for_parts<mod::kMaskParts>([&](auto part) {
            if constexpr ((part.kPeriod != 0) == kRepeating) {
                unsigned seen[2];
                look_together<mod::kKeyTile>(
                    seen, rows, static_cast<int>(threadIdx.x) % 32,
                    [&](const mod::Row& x, int i, const mod::Row& y, int j) {
                        return part.alike(x, q_of(i), y, q_of(j));
                    },
                    [&](int word, const mod::Row& row, int index) {
                        return part.visible({arguments_, place_.launch, place_.head, row,
                                             columns[word], place_.b, place_.h, place_.h_kv,
                                             q_of(index), kv[word]});
                    });
                visible[0] &= seen[0];
                visible[1] &= seen[1];
            }
        });
    }

    const SequenceLength length_;
    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    int warp_row_, first_row_, first_column_; // of the warp, and of the thread in it and a tile
    RepeatingBits repeating_;
};

} // namespace sm90
