// Reads of the forward kernel's consumers at addresses that are affine in q and kv: a thread takes
// its elements from tiles in shared memory, where forward_shifts.cuh copies them.
#pragma once

#include "common/select.h"
#include "sm90/fragment.cuh"
#include "sm90/shifted_ends.cuh"

namespace sm90 {

// Which indices are read in a tile: all have an element (inside); all are beyond one end of the
// clamp, so that each line has a single element, that of the end (beyond); or neither (mixed).
enum class Reach { inside, beyond, mixed };
template <Reach> struct ReachOf {};

struct NoShiftedReads {
    __device__ void find(const AttentionArguments&, const mod::Arguments&, const HeadPlace&, int,
                         int, int) {}
    __device__ void find_reach(int) {}
    __device__ void use(unsigned) {}
    template <typename Visit> __device__ void with_reach(Visit visit) const {
        visit(ReachOf<Reach::inside>{});
    }
    __device__ bool have_ends() const { return false; }
    __device__ bool sums_ends() const { return false; }
    __device__ void start_with_ends(Scores&, float (&)[2]) const {}
    template <typename R> __device__ void load(R, int) {}
    __device__ const float* of_row(int) const { return nullptr; }
};

class ShiftedReads;

#ifdef FLEXC_HAS_SHIFTED_READS

// One read of one thread. Elements are named by row (0 or 1) and column in the thread's part of a
// tile.
template <int kRead> class ThreadShifts {
    using Tile = ShiftedTile<kRead>;
    using Read = typename Tile::Read;
    static constexpr bool kByKey = Read::kByKey;
    static constexpr int kBytes = Tile::kBytes, kRowStep = 8; // to a thread's second row
    static constexpr int kLastColumn = mod::kKeyTile - 8 + 1; // relative to its first one

  public:
    // Prepares the read for a head and a tile of queries. row, column: the thread's first ones.
    __device__ void find(const AttentionArguments& attention, const mod::Arguments& arguments,
                         const HeadPlace& place, int first_row, int row, int column) {
        const ShiftedHead<kRead> head(attention, arguments, place);
        row_ = row;
        column_ = column;
        end_ = Tile::end_offset() + shifted_end_bytes(kByKey ? column : row);
        pitch_ = head.pitch();
        place_ = Tile::place_of(kByKey ? row : column);
        origin_ = head.origin() + (kByKey ? column : row) * pitch_;
        const long long index =
            head.index + Read::kQueryStep * (first_row + row) + Read::kKeyStep * column;
        // Hides how they were computed, so that they are kept: else each tile would compute them
        // again from 64 bits.
        least_ = computed_again(bounded_distance(head.least - index));
        most_ = computed_again(bounded_distance(head.most - index));
    }
    // Sets the tile of keys, which starts at first_key, and finds which of its indices have
    // elements.
    __device__ void set_tile(int first_key) {
        low_ = least_ - Read::kKeyStep * first_key;
        high_ = most_ - Read::kKeyStep * first_key;
    }
    // stage: the address in shared memory of the tile, or of its lines' ends.
    __device__ void use(unsigned stage) { stage_ = stage; }
    // Returns whether each index that the thread reads has an element.
    __device__ bool is_inside() const {
        return low_ <= lowest(0, kRowStep, 0, kLastColumn) &&
               highest(0, kRowStep, 0, kLastColumn) <= high_;
    }
    // Returns whether the whole tile is beyond an end of the clamp; the same for all threads.
    __device__ bool is_beyond() const {
        return (Read::kHasLeast && highest_of_tile() < low_) ||
               (Read::kHasMost && lowest_of_tile() > high_);
    }
    // Loads the ends of lines of a tile beyond the clamp: of the thread's two rows or, if lines are
    // those of keys, of columns j and j + 1.
    __device__ void load_ends(int j, float (&values)[2]) const {
        if constexpr (kByKey) {
            load_shared(stage_ + end_ + shifted_end_bytes(column(j)), values);
        } else {
            values[0] = end(0);
            values[1] = end(kRowStep);
        }
    }
    // Loads the two rows' elements of the j-th column.
    __device__ void load(ReachOf<Reach::inside>, int j, float (&values)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            values[r] = element(line(r, j) + place_ * kBytes + place_gain(r, j) * kBytes);
    }
    __device__ void load(ReachOf<Reach::beyond>, int j, float (&values)[2]) {
        if constexpr (kByKey) {
            if (j % 2 == 0) load_ends(j, ends_);
            values[0] = values[1] = ends_[j % 2];
        }
    }
    // Clamps places to those of indices that have an element. A line without any has the clamp's
    // end in the nearest place: see ShiftedCopy. Reads beyond a side without a clamp are 0.
    __device__ void load(ReachOf<Reach::mixed>, int j, float (&values)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int gain = index_gain(r * kRowStep, column(j)), along = place_gain(r, j);
            const unsigned first = line(r, j);
            const auto at = [&](int place) { return first + place * kBytes; };
            const unsigned low = at(inside(place_ + low_ + along - gain));
            const unsigned high = at(inside(place_ + high_ + along - gain));
            const float value = element(min(max(at(place_) + along * kBytes, low), high));
            const bool is_there =
                (Read::kHasLeast || gain >= low_) && (Read::kHasMost || gain <= high_);
            values[r] = is_there ? value : 0.0f;
        }
    }

  private:
    static constexpr __device__ int column(int j) { return j / 2 * 8 + j % 2; }
    static constexpr __device__ int index_gain(int rows, int columns) {
        return Read::kQueryStep * rows + Read::kKeyStep * columns;
    }
    static constexpr __device__ int place_gain(int r, int j) {
        return Tile::kAlong * (kByKey ? r * kRowStep : column(j));
    }
    static __device__ int inside(int place) { return min(max(place, 0), Tile::kLength - 1); }
    // Returns the address at which an element's line begins.
    __device__ unsigned line(int r, int j) const {
        return stage_ + origin_ + (kByKey ? column(j) : r * kRowStep) * pitch_;
    }
    static __device__ float element(unsigned from) {
        return load_shared_element(from, typename Tile::Element{});
    }
    __device__ float end(int lines) const {
        return __uint_as_float(load_shared_word(stage_ + end_ + shifted_end_bytes(lines)));
    }
    // Return the least and the largest gain of the index in these rows and columns.
    static __device__ int lowest(int first_row, int last_row, int first_column, int last_column) {
        return index_gain(Read::kQueryStep > 0 ? first_row : last_row,
                          Read::kKeyStep > 0 ? first_column : last_column);
    }
    static __device__ int highest(int first_row, int last_row, int first_column, int last_column) {
        return index_gain(Read::kQueryStep > 0 ? last_row : first_row,
                          Read::kKeyStep > 0 ? last_column : first_column);
    }
    // Returns the gain from the tile's first query and key to those of the thread.
    __device__ int own_gain() const { return index_gain(row_, column_); }
    // Return the tile's least and largest gain, from the thread's first query and key.
    __device__ int lowest_of_tile() const { return Tile::kLeastGain - own_gain(); }
    __device__ int highest_of_tile() const { return Tile::kMostGain - own_gain(); }

    int row_, column_, place_;
    unsigned pitch_, origin_, end_, stage_;
    float ends_[2]; // of columns j and j + 1
    // Least and largest index that has an element, relative to the index of the thread's first one:
    // in the head's first tile of keys (least_, most_) and in the current tile (low_, high_).
    int least_, most_, low_, high_;
};

// All reads of one thread.
class ShiftedReads {
  public:
    __device__ void find(const AttentionArguments& attention, const mod::Arguments& arguments,
                         const HeadPlace& place, int first_row, int row, int column) {
        find<0>(reads_, attention, arguments, place, first_row, row, column);
    }
    // Finds the reach of the tile of keys that starts at first_key. Called by whole warps.
    __device__ void find_reach(int first_key) {
        bool inside = true, beyond = kHasShiftedEnds;
        find_reach<0>(reads_, first_key, inside, beyond);
        reach_ = __all_sync(0xffffffffu, inside)   ? Reach::inside
                 : __all_sync(0xffffffffu, beyond) ? Reach::beyond
                                                   : Reach::mixed;
    }
    __device__ Reach reach() const { return reach_; }
    // Returns whether only lines' ends were copied of that tile.
    __device__ bool have_ends() const { return kHasShiftedEnds && reach_ == Reach::beyond; }
    // Sets the address of that tile's stage, which is full.
    __device__ void use(unsigned stage) { use<0>(reads_, stage); }
    // Calls visit() with the tile's reach as a ReachOf, a constant for the compiler.
    template <typename Visit> __device__ void with_reach(Visit visit) {
        if (reach_ == Reach::inside) {
            visit(ReachOf<Reach::inside>{});
        } else if (kHasShiftedEnds && !kSumsShiftedEnds && reach_ == Reach::beyond) {
            load_ends<0>(reads_);
            visit(ReachOf<Reach::beyond>{});
        } else {
            visit(ReachOf<Reach::mixed>{});
        }
    }
    // Returns whether the tile's elements are sums of ends. start_with_ends() then returns those of
    // rows as offsets and starts accumulators with those of columns, to which products are added.
    __device__ bool sums_ends() const { return kSumsShiftedEnds && reach_ == Reach::beyond; }
    __device__ void start_with_ends(Scores& scores, float (&offsets)[2]) const {
        offsets[0] = offsets[1] = 0;
        add_ends<false, true, 0>(reads_, 0, offsets);
#pragma unroll
        for (int j = 0; j < kFragmentColumns; j += 2) {
            float of_keys[2] = {0, 0};
            add_ends<true, true, 0>(reads_, j, of_keys);
#pragma unroll
            for (int r = 0; r < 2; ++r)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    scores[accumulator(r, j + i)] = of_keys[i];
        }
    }
    // Loads the values of the j-th column.
    template <typename R> __device__ void load(R reach, int j) { load<0>(reads_, reach, j); }
    // Returns the values of row r (0 or 1), one for each read.
    __device__ const float* of_row(int r) const { return values_[r]; }

  private:
    template <int kRead, typename Dummy = void> struct Reads {
        ThreadShifts<kRead> read;
        Reads<kRead + 1> rest;
    };
    template <typename Dummy> struct Reads<mod::ShiftedReads::kCount, Dummy> {};

    template <int kRead>
    static __device__ void find(Reads<kRead>& reads, const AttentionArguments& attention,
                                const mod::Arguments& arguments, const HeadPlace& place,
                                int first_row, int row, int column) {
        if constexpr (kRead < mod::ShiftedReads::kCount) {
            reads.read.find(attention, arguments, place, first_row, row, column);
            find<kRead + 1>(reads.rest, attention, arguments, place, first_row, row, column);
        }
    }
    template <int kRead>
    static __device__ void find_reach(Reads<kRead>& reads, int first_key, bool& inside,
                                      bool& beyond) {
        if constexpr (kRead < mod::ShiftedReads::kCount) {
            reads.read.set_tile(first_key);
            inside = inside & reads.read.is_inside();
            beyond = beyond & reads.read.is_beyond();
            find_reach<kRead + 1>(reads.rest, first_key, inside, beyond);
        }
    }
    template <int kRead> static __device__ void use(Reads<kRead>& reads, unsigned stage) {
        if constexpr (kRead < mod::ShiftedReads::kCount) {
            reads.read.use(stage);
            use<kRead + 1>(reads.rest, stage);
        }
    }
    // Rounds towards zero, so that a sum of finite ends is finite: only -inf hides an element.
    static __device__ float sum(float x, float y) { return __fadd_rz(x, y); }
    // Sums the ends of all reads by row, for the thread's two rows, or of all by key, for columns j
    // and j + 1. kIsFirst: `sums` holds no end yet.
    template <bool kByKey, bool kIsFirst, int kRead>
    static __device__ void add_ends(const Reads<kRead>& reads, int j, float (&sums)[2]) {
        if constexpr (kRead < mod::ShiftedReads::kCount) {
            constexpr bool kAdds = mod::ShiftedRead<kRead>::kByKey == kByKey;
            if constexpr (kAdds) {
                float ends[2];
                reads.read.load_ends(j, ends);
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    sums[i] = kIsFirst ? ends[i] : sum(sums[i], ends[i]);
            }
            add_ends<kByKey, kIsFirst && !kAdds, kRead + 1>(reads.rest, j, sums);
        }
    }
    // Loads the ends of the thread's rows, which hold for all columns.
    template <int kRead> __device__ void load_ends(const Reads<kRead>& reads) {
        if constexpr (kRead < mod::ShiftedReads::kCount) {
            if constexpr (!mod::ShiftedRead<kRead>::kByKey) {
                float ends[2];
                reads.read.load_ends(0, ends);
                values_[0][kRead] = ends[0];
                values_[1][kRead] = ends[1];
            }
            load_ends<kRead + 1>(reads.rest);
        }
    }
    template <int kRead, typename R> __device__ void load(Reads<kRead>& reads, R reach, int j) {
        if constexpr (kRead < mod::ShiftedReads::kCount) {
            float of_column[2] = {values_[0][kRead], values_[1][kRead]};
            reads.read.load(reach, j, of_column);
            values_[0][kRead] = of_column[0];
            values_[1][kRead] = of_column[1];
            load<kRead + 1>(reads.rest, reach, j);
        }
    }

    Reads<0> reads_;
    // Of the column that was loaded last; ends of rows are those of all columns.
    float values_[2][mod::ShiftedReads::kCount ? mod::ShiftedReads::kCount : 1];
    Reach reach_ = Reach::inside;
};

#endif

using Shifts = Select<kReadsShifts, ShiftedReads, NoShiftedReads>;

} // namespace sm90
