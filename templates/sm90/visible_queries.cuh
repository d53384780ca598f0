// Which queries of a tile see the keys of a warp of the backward kernel.
#pragma once

#include "common/place.cuh"
#include "common/visible_bits.cuh"
#include "sm90/backward_lengths.cuh"
#include "sm90/backward_registers.cuh"
#include "sm90/key_columns.cuh"

namespace sm90 {

// Of one thread: its two keys, and in each eight queries two. Knows nothing of scores.
class VisibleQueries {
  public:
    // columns: what the program computes once for each of the thread's keys. Given again to find():
    // a reference to what lies beside this object would keep both in memory.
    __device__ VisibleQueries(TileLength length, const mod::Arguments& arguments,
                              const HeadPlace& place, const KeyColumns& columns, int warp_key,
                              int lane)
        : length_(length), arguments_(arguments), place_(place), warp_key_(warp_key), lane_(lane) {
        if constexpr (kRepeats)
            repeating_.fill<kPacks>([&](unsigned(&bits)[2], int tile) {
                meet_parts<true>(bits, tile * mod::kQueryTile, columns, nullptr);
            });
    }

    // Whether all of a tile see the warp's keys; for the whole warp. mask_shows_tile: the block
    // mask, if it has one, says so.
    __device__ bool are_all(int tile_query, bool mask_shows_tile) const {
        const int last_query = tile_query + kScoreQueries - 1, last_key = warp_key_ + 15;
        if (last_query >= length_.queries() || last_key >= length_.keys()) return false;
        if constexpr (!mod::kHasMask) return true;
        if constexpr (mod::kHasBlockMask) return mask_shows_tile;
        return kMaskIsBand && place_.band_holds(tile_query, last_query, warp_key_, last_key);
    }

    // One bit for each of the thread's queries, for each of its keys. `rows`: of the tile, where
    // kStagesRows.
    __device__ void find(unsigned (&visible)[2], int tile_query, const KeyColumns& columns,
                         const mod::Row* rows) const {
        const int lane = own_lane();
        const int first = tile_query + lane % 4 * 2;
#pragma unroll
        for (int key = 0; key < 2; ++key) {
            // Persistent kernels have no registers for this.
            const int own = warp_key_ + lane / 4;
            const int position =
                (mod::kPersistent || kSaves.positions_again ? computed_again(own) : own) + 8 * key;
            int low = 0, high = length_.queries() - 1;
            if constexpr (mod::kHasBand) {
                low = max(place_.first_query(position), low);
                high = min(place_.last_query(position), high);
            }
            visible[key] =
                position >= length_.keys() ? 0 : bits_to(high - first) & ~bits_to(low - 1 - first);
        }
        if constexpr (!kMaskIsBand) meet_parts<false>(visible, tile_query, columns, rows);
        if constexpr (kRepeats) repeating_.meet<kPacks>(visible, tile_query / mod::kQueryTile);
    }

  private:
    // Bits of mask parts that repeat from tile to tile are kept in half of the words; where
    // registers are short and tiles long, not at all.
    static constexpr bool kRepeats = !kMaskIsBand && RepeatingBits::kPeriod != 0 && !kSharesKeys &&
                                     !(kSaves.keys_again && kIsLong);
    static constexpr bool kPacks = kSaves.keys_again && kScoreQueries == 64;

    // What every part of the mask shows: of those that repeat, or of the others.
    template <bool kRepeating>
    __device__ void meet_parts(unsigned (&visible)[2], int tile_query, const KeyColumns& columns,
                               const mod::Row* rows) const {
        if constexpr (kMaskIsLong) read_again(arguments_);
        const mod::Launch launch = kMaskIsLong ? mod::at_launch(arguments_) : place_.launch;
        const int lane = own_lane();
        mod::Column own[2];
        columns.find(own, lane);
        const auto kv_of = [&](int index) { return length_.kv_idx(warp_key_ + index); };
        for_parts<mod::kMaskParts>([&](auto part) {
            if constexpr ((kRepeats && part.kPeriod != 0) == kRepeating) {
                unsigned seen[2];
                look_together<kScoreQueries>(
                    seen, own, own_lane(),
                    [&](const mod::Column& x, int i, const mod::Column& y, int j) {
                        return part.alike(x, kv_of(i), y, kv_of(j));
                    },
                    [&](int word, const mod::Column& column, int index) {
                        // Otherwise the compiler would keep the rows of all words in registers.
                        const int other = kStagesRows || !kMaskIsLong ? lane : computed_again(lane);
                        const int query = 32 * word + other, kv = kv_of(index);
                        const int q = length_.q_idx(tile_query + query);
                        const mod::Row row = kStagesRows && !kRepeating
                                                 ? rows[query]
                                                 : mod::at_row(arguments_, launch, place_.head,
                                                               place_.b, place_.h, place_.h_kv, q);
                        return part.visible({arguments_, launch, place_.head, row, column, place_.b,
                                             place_.h, place_.h_kv, q, kv, q, kv, nullptr, 0, 0,
                                             nullptr});
                    });
                visible[0] &= seen[0];
                visible[1] &= seen[1];
            }
        });
    }

    // Long masks keep nothing from tile to tile, because registers are shortest there.
    __device__ int own_lane() const {
        return kSaves.lane_again ? lane_again() : kMaskIsLong ? computed_again(lane_) : lane_;
    }

    TileLength length_;
    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    int warp_key_, lane_;
    RepeatingBits repeating_;
};

} // namespace sm90
