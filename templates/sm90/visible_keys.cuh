// Finds which keys of a tile the rows of a warp of the forward kernel see. A class for each kind of
// mask, with one interface, that of KeysInBand.
#pragma once

#include "common/mask.cuh"
#include "common/place.cuh"
#include "common/select.h"
#include "common/visible_bits.cuh"

namespace sm90 {

// Returns the bits of keys in front of the first that the band shows to a row: there are none.
struct NoKeysBefore {
    static __device__ unsigned bits(const HeadPlace&, int, int) { return 0; }
};
// Returns the bits of keys in front of the band.
struct KeysBeforeBand {
    static __device__ unsigned bits(const HeadPlace& place, int row, int first) {
        return bits_to(max(place.first_key(row), 0) - 1 - first);
    }
};
using KeysBefore =
    Select<mod::Mask::kHasBand && mod::Mask::kBandHasLow, KeysBeforeBand, NoKeysBefore>;

// What one thread finds: for its two rows, and two of each eight keys. Does not need scores.
class KeysInBand {
  public:
    // rows: what the program computes once for each of the thread's rows. Given again to find(): a
    // reference to what lies beside this object would keep both in memory.
    __device__ KeysInBand(const SequenceLength& length, const mod::Arguments& arguments,
                          const HeadPlace& place, const mod::Row (&)[2], int warp_row, int lane)
        : length_(length), arguments_(arguments), place_(place), warp_row_(warp_row),
          first_row_(warp_row + lane / 4), first_column_(lane % 4 * 2) {}

    // Returns whether the warp sees all of a tile, the same in all lanes. mask_shows_all: the block
    // mask says so.
    __device__ bool are_all(int first_key, bool mask_shows_all) const {
        const int last_key = first_key + mod::kKeyStep - 1;
        return last_key < length_.keys() && Mask::shows_all(place_, mask_shows_all, warp_row_,
                                                            warp_row_ + 15, first_key, last_key);
    }

    // Finds one bit for each of the thread's columns in each of its rows: comparisons of each
    // element would cost twice as much, and scores in registers would ask for them to be unrolled.
    __device__ void find(unsigned (&visible)[2], int first_key, const mod::Row (&)[2]) const {
        visible[0] = in_band(0, first_key);
        visible[1] = in_band(1, first_key);
    }

  protected:
    const SequenceLength length_;
    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    int warp_row_, first_row_,
        first_column_; // the warp's; the thread's, in the tensor and in a tile

  private:
    // Returns the bits of the keys of a row that are inside the mask's band and the keys' length.
    __device__ unsigned in_band(int r, int first_key) const {
        const int row = first_row_ + 8 * r, first = first_key + first_column_;
        const int last = place_.last_key_within(row, length_.keys() - 1);
        return bits_to(last - first) & ~KeysBefore::bits(place_, row, first);
    }
};

// Finds keys that the band and all other parts of the mask show.
class KeysInParts : public KeysInBand {
  public:
    using KeysInBand::KeysInBand;

    __device__ void find(unsigned (&visible)[2], int first_key, const mod::Row (&rows)[2]) const {
        KeysInBand::find(visible, first_key, rows);
        clear_hidden<EveryPart>(visible, first_key, rows);
    }

  protected:
    // Clears the bits of keys that any of these parts hides.
    template <typename Parts>
    __device__ void clear_hidden(unsigned (&visible)[2], int first_key,
                                 const mod::Row (&rows)[2]) const {
        if constexpr (kIsSeenByWords<mod::Column>) {
            clear_hidden_by_words<Parts>(visible, first_key, rows);
            return;
        }
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
        for_parts<Parts>([&](auto part) {
            unsigned seen[2];
            evaluate_together<mod::kKeyTile>(
                seen, rows, static_cast<int>(threadIdx.x) % 32,
                [&](const mod::Row& x, int i, const mod::Row& y, int j) {
                    return part.alike(x, q_of(i), y, q_of(j));
                },
                [&](int word, const mod::Row& row, int index) {
                    return part.visible({arguments_, place_.launch, place_.head, row, columns[word],
                                         place_.b, place_.h, place_.h_kv, q_of(index), kv[word]});
                });
            visible[0] &= seen[0];
            visible[1] &= seen[1];
        });
    }

    // Does the same, with the values of a lane's keys one after the other.
    template <typename Parts>
    __device__ void clear_hidden_by_words(unsigned (&visible)[2], int first_key,
                                          const mod::Row (&rows)[2]) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const auto q_of = [&](int index) { return length_.q_idx(warp_row_ + index); };
        const auto kv_of = [&](int word) { return length_.kv_idx(first_key + 32 * word + lane); };
        for_parts<Parts>([&](auto part) {
            unsigned seen[2];
            evaluate_by_words<mod::kKeyTile>(
                seen, rows, lane,
                [&](const mod::Row& x, int i, const mod::Row& y, int j) {
                    return part.alike(x, q_of(i), y, q_of(j));
                },
                [&](int word) {
                    return mod::at_column(arguments_, place_.launch, place_.head, place_.b,
                                          place_.h, place_.h_kv, kv_of(word));
                },
                [&](int word, const mod::Column& column, const mod::Row& row, int index) {
                    return part.visible({arguments_, place_.launch, place_.head, row, column,
                                         place_.b, place_.h, place_.h_kv, q_of(index),
                                         kv_of(word)});
                });
            visible[0] &= seen[0];
            visible[1] &= seen[1];
        });
    }
};

// Does the same, but keeps bits of parts that repeat from tile to tile.
class KeysInRepeatingParts : public KeysInParts {
  public:
    __device__ KeysInRepeatingParts(const SequenceLength& length, const mod::Arguments& arguments,
                                    const HeadPlace& place, const mod::Row (&rows)[2], int warp_row,
                                    int lane)
        : KeysInParts(length, arguments, place, rows, warp_row, lane) {
        repeating_.fill([&](unsigned(&bits)[2], int tile) {
            clear_hidden<PartsThatRepeat>(bits, tile * mod::kKeyTile, rows);
        });
    }

    __device__ void find(unsigned (&visible)[2], int first_key, const mod::Row (&rows)[2]) const {
        KeysInBand::find(visible, first_key, rows);
        clear_hidden<PartsThatDiffer>(visible, first_key, rows);
        repeating_.clear_hidden(visible, first_key / mod::kKeyTile);
    }

  private:
    RepeatingBits repeating_;
};

using VisibleKeys = Select<Mask::kIsComparison, KeysInBand,
                           Select<kLongestPeriod == 0, KeysInParts, KeysInRepeatingParts>>;

} // namespace sm90
