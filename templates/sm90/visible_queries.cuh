// Finds which queries of a tile see the keys of a warp of the backward kernel. A class for each
// kind of mask, with one interface, that of QueriesInside.
#pragma once

#include "common/mask.cuh"
#include "common/place.cuh"
#include "common/select.h"
#include "common/visible_bits.cuh"
#include "sm90/backward_lengths.cuh"
#include "sm90/backward_registers.cuh"
#include "sm90/key_columns.cuh"

namespace sm90 {

// A thread's key, in the tensor: kept in a register, or computed again.
struct KeptKey {
    static __device__ int of(int key) { return key; }
};
struct KeyAgain {
    static __device__ int of(int key) { return computed_again(key); }
};
// Persistent kernels have no registers for it.
using OwnKey = Select<mod::kPersistent || kSaves.positions_again, KeyAgain, KeptKey>;

// When a mask is evaluated, a thread's lane and what the program computes once are kept in
// registers.
struct KeepsForMask {
    static __device__ int lane(int kept) { return lane_of_form(kept); }
    static __device__ mod::Launch launch(const mod::Arguments&, const HeadPlace& place) {
        return place.launch;
    }
    // Returns which of 32 queries a lane evaluates the mask for.
    static __device__ int query(int lane) { return lane; }
};
// When a long mask is evaluated, nothing is kept in registers, nor from tile to tile, because they
// are shortest then.
struct FindsForMask : KeepsForMask {
    static __device__ int lane(int kept) {
        return kSaves.lane_again ? lane_again() : computed_again(kept);
    }
    static __device__ mod::Launch launch(const mod::Arguments& arguments, const HeadPlace&) {
        read_again(arguments);
        return mod::at_launch(arguments);
    }
};
// The same where rows are not staged; otherwise the compiler would keep the rows of all words in
// registers.
struct FindsQueriesForMask : FindsForMask {
    static __device__ int query(int lane) { return computed_again(lane); }
};
using MaskRegisters =
    Select<!kMaskIsLong, KeepsForMask, Select<kStagesRows, FindsForMask, FindsQueriesForMask>>;

// What the program computes for a query of a tile: computed where a lane evaluates the mask for it,
// or staged.
struct ComputedRowsForMask {
    const mod::Row* rows; // not used
    static __device__ mod::Row of(int, const mod::Arguments& arguments, const mod::Launch& launch,
                                  const HeadPlace& place, int q) {
        return mod::at_row(arguments, launch, place.head, place.b, place.h, place.h_kv, q);
    }
};
struct StagedRowsForMask {
    const mod::Row* rows;
    __device__ mod::Row of(int query, const mod::Arguments&, const mod::Launch&, const HeadPlace&,
                           int) const {
        return rows[query];
    }
};
using MaskRows = Select<kStagesRows, StagedRowsForMask, ComputedRowsForMask>;

// Queries inside of the lengths, and of the band. What one thread finds: for its two keys, and two
// of each eight queries. Does not need scores.
class QueriesInside {
  public:
    // columns: what the program computes once for each of the thread's keys. Given again to find():
    // a reference to what lies beside this object would keep both in memory.
    __device__ QueriesInside(TileLength length, const mod::Arguments& arguments,
                             const HeadPlace& place, const KeyColumns&, int warp_key, int lane)
        : length_(length), arguments_(arguments), place_(place), warp_key_(warp_key), lane_(lane) {}

    // Returns whether all of a tile see the warp's keys, the same in all lanes. mask_shows_tile:
    // the block mask, if it has one, says so.
    __device__ bool are_all(int tile_query, bool) const {
        const int last_query = tile_query + kScoreQueries - 1, last_key = warp_key_ + 15;
        return last_query < length_.queries() && last_key < length_.keys();
    }

    // Finds one bit for each of the thread's queries, for each of its keys. rows: those of the
    // tile, where kStagesRows.
    __device__ void find(unsigned (&visible)[2], int tile_query, const KeyColumns&,
                         const mod::Row*) const {
        const int lane = own_lane();
        const int first = tile_query + lane % 4 * 2;
#pragma unroll
        for (int key = 0; key < 2; ++key) {
            const int position = OwnKey::of(warp_key_ + lane / 4) + 8 * key;
            const Positions seen = place_.queries_within(position, {0, length_.queries() - 1});
            visible[key] = position >= length_.keys()
                               ? 0
                               : bits_to(seen.last - first) & ~bits_to(seen.first - 1 - first);
        }
    }

  protected:
    __device__ int own_lane() const { return MaskRegisters::lane(lane_); }

    TileLength length_;
    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    int warp_key_, lane_;
};

// The same under a mask, of which a block mask knows more than the band.
class QueriesInBand : public QueriesInside {
  public:
    using QueriesInside::QueriesInside;

    __device__ bool are_all(int tile_query, bool mask_shows_tile) const {
        using TileMask = Select<mod::Mask::kHasBlockMask, MaskOfElements, Mask>;
        const int last_query = tile_query + kScoreQueries - 1, last_key = warp_key_ + 15;
        if (last_query >= length_.queries() || last_key >= length_.keys()) return false;
        return TileMask::shows_all(place_, mask_shows_tile, tile_query, last_query, warp_key_,
                                   last_key);
    }
};

// Finds queries to which the band and all other parts of the mask show the keys.
class QueriesInParts : public QueriesInBand {
  public:
    using QueriesInBand::QueriesInBand;

    __device__ void find(unsigned (&visible)[2], int tile_query, const KeyColumns& columns,
                         const mod::Row* rows) const {
        QueriesInside::find(visible, tile_query, columns, rows);
        clear_hidden<EveryPart>(visible, tile_query, columns, MaskRows{rows});
    }

  protected:
    // Clears the bits of elements that any of these parts hides.
    template <typename Parts, typename Rows>
    __device__ void clear_hidden(unsigned (&visible)[2], int tile_query, const KeyColumns& columns,
                                 Rows rows) const {
        const mod::Launch launch = MaskRegisters::launch(arguments_, place_);
        const int lane = own_lane();
        mod::Column own[2];
        columns.find(own, lane);
        const auto kv_of = [&](int index) { return length_.kv_idx(warp_key_ + index); };
        for_parts<Parts>([&](auto part) {
            unsigned seen[2];
            if constexpr (!kStagesRows && kIsSeenByWords<mod::Row>)
                evaluate_by_words<kScoreQueries>(
                    seen, own, own_lane(),
                    [&](const mod::Column& x, int i, const mod::Column& y, int j) {
                        return part.alike(x, kv_of(i), y, kv_of(j));
                    },
                    [&](int word) {
                        const int query = 32 * word + MaskRegisters::query(lane);
                        return rows.of(query, arguments_, launch, place_,
                                       length_.q_idx(tile_query + query));
                    },
                    [&](int word, const mod::Row& row, const mod::Column& column, int index) {
                        const int q = length_.q_idx(tile_query + 32 * word + lane);
                        const int kv = kv_of(index);
                        return part.visible({arguments_, launch, place_.head, row, column, place_.b,
                                             place_.h, place_.h_kv, q, kv, q, kv, nullptr, 0, 0,
                                             nullptr});
                    });
            else
                evaluate_together<kScoreQueries>(
                    seen, own, own_lane(),
                    [&](const mod::Column& x, int i, const mod::Column& y, int j) {
                        return part.alike(x, kv_of(i), y, kv_of(j));
                    },
                    [&](int word, const mod::Column& column, int index) {
                        const int query = 32 * word + MaskRegisters::query(lane), kv = kv_of(index);
                        const int q = length_.q_idx(tile_query + query);
                        const mod::Row row = rows.of(query, arguments_, launch, place_, q);
                        return part.visible({arguments_, launch, place_.head, row, column, place_.b,
                                             place_.h, place_.h_kv, q, kv, q, kv, nullptr, 0, 0,
                                             nullptr});
                    });
            visible[0] &= seen[0];
            visible[1] &= seen[1];
        });
    }
};

// Does the same, but keeps bits of parts that repeat from tile to tile; where registers are short,
// in half of the words.
class QueriesInRepeatingParts : public QueriesInParts {
  public:
    __device__ QueriesInRepeatingParts(TileLength length, const mod::Arguments& arguments,
                                       const HeadPlace& place, const KeyColumns& columns,
                                       int warp_key, int lane)
        : QueriesInParts(length, arguments, place, columns, warp_key, lane) {
        repeating_.fill([&](unsigned(&bits)[2], int tile) {
            clear_hidden<PartsThatRepeat>(bits, tile * mod::kQueryTile, columns,
                                          ComputedRowsForMask{nullptr});
        });
    }

    __device__ void find(unsigned (&visible)[2], int tile_query, const KeyColumns& columns,
                         const mod::Row* rows) const {
        QueriesInside::find(visible, tile_query, columns, rows);
        clear_hidden<PartsThatDiffer>(visible, tile_query, columns, MaskRows{rows});
        repeating_.clear_hidden(visible, tile_query / mod::kQueryTile);
    }

  private:
    Select<kSaves.keys_again && kScoreQueries == 64, RepeatingHalves, RepeatingBits> repeating_;
};

// Whether bits of parts that repeat are kept: not where registers are short and tiles long.
constexpr bool kKeepsRepeatingBits =
    kLongestPeriod != 0 && !kSharesKeys && !(kSaves.keys_again && kIsLong);
using VisibleQueries =
    Select<!mod::Mask::kExists, QueriesInside,
           Select<Mask::kIsComparison, QueriesInBand,
                  Select<kKeepsRepeatingBits, QueriesInRepeatingParts, QueriesInParts>>>;

} // namespace sm90
