// The band of diagonals outside of which a mask hides everything, and the clamps of its ends.
// Positions here are rows of the tensors; the program sees them shifted by the call's offsets.
#pragma once

#include "common/select.h"
#include "mod.cuh"

constexpr int kAnyDistance = 1 << 30; // no two positions are this far apart

// Members of mod::Clamps, as bits of mod::Mask::kClamps.
enum class Clamp { first_least, first_most, last_least, last_most, least_query, most_query };
constexpr bool has(Clamp clamp) { return (mod::Mask::kClamps >> static_cast<int>(clamp) & 1) != 0; }

// Positions first ... last; empty if first > last.
struct Positions {
    int first, last;
};

// Shifts a bound, saturating before and after: a program can write bounds of any size.
__device__ inline int shifted_bound(long long bound, long long shift) {
    constexpr long long kFar = 1ll << 60, kAny = kAnyDistance;
    bound = (bound < -kFar ? -kFar : bound > kFar ? kFar : bound) + shift;
    return static_cast<int>(bound < -kAny ? -kAny : bound > kAny ? kAny : bound);
}

// Visible elements have low <= kv - q <= high.
struct Diagonals {
    int low, high;

    // Computes the band of a batch entry with these offsets.
    __device__ void find(const mod::Band& band, long long q_offset, long long kv_offset) {
        low = shifted_bound(band.low, q_offset - kv_offset);
        high = shifted_bound(band.high, q_offset - kv_offset);
    }
    static __device__ void find_clamps(const mod::Clamps&, long long, long long) {}

    // First and last key that a query may see, by the band alone. The last key is negative if the
    // query sees none whatever the band says.
    __device__ int first_key(int q) const { return q + low; }
    __device__ int last_key(int q) const { return q + high; }
    // First and last query that may see a key.
    __device__ int first_query(int kv) const { return kv - high; }
    __device__ int last_query(int kv) const { return kv - low; }

    // Keys that any of the queries may see. Both ends never decrease from one query to the next.
    __device__ Positions keys_of(int first_q, int last_q) const {
        return {first_key(first_q), last_key(last_q)};
    }
    // Whether the whole rectangle (ends included) is inside the band.
    __device__ bool band_holds(int first_q, int last_q, int first_kv, int last_kv) const {
        return first_kv - last_q >= low && last_kv - first_q <= high;
    }
};

// A clamp that the mask does not have: all functions return x.
struct NoBound {
    static __device__ void find(long long, long long) {}
    // max(x, bound) and min(x, bound).
    static __device__ int raise(int x) { return x; }
    static __device__ int lower(int x) { return x; }
    // `other` if the position is before the bound, up to it, from it on, or behind it; else x.
    static __device__ int or_before(int, int x, int) { return x; }
    static __device__ int or_until(int, int x, int) { return x; }
    static __device__ int or_from(int, int x, int) { return x; }
    static __device__ int or_behind(int, int x, int) { return x; }
    static __device__ bool is_behind(int) { return false; }
    static __device__ bool is_before(int) { return false; }
};
// A clamp that the mask has: a bound of positions.
class Bound {
  public:
    __device__ void find(long long bound, long long shift) { at_ = shifted_bound(bound, shift); }
    __device__ int raise(int x) const { return max(x, at_); }
    __device__ int lower(int x) const { return min(x, at_); }
    __device__ int or_before(int position, int x, int other) const {
        return position < at_ ? other : x;
    }
    __device__ int or_until(int position, int x, int other) const {
        return position <= at_ ? other : x;
    }
    __device__ int or_from(int position, int x, int other) const {
        return position >= at_ ? other : x;
    }
    __device__ int or_behind(int position, int x, int other) const {
        return position > at_ ? other : x;
    }
    // Whether the bound itself is behind, or before, the position.
    __device__ bool is_behind(int position) const { return position < at_; }
    __device__ bool is_before(int position) const { return position > at_; }

  private:
    int at_;
};
template <Clamp kClamp> using BoundOf = Select<has(kClamp), Bound, NoBound>;

// A band with clamps, as prefixes and padding need: limits of the first and last key that a query
// sees, and of the queries that see any key.
class ClampedDiagonals : public Diagonals {
  public:
    __device__ void find_clamps(const mod::Clamps& clamps, long long q_offset,
                                long long kv_offset) {
        first_least_.find(clamps.first_least, -kv_offset);
        first_most_.find(clamps.first_most, -kv_offset);
        last_least_.find(clamps.last_least, -kv_offset);
        last_most_.find(clamps.last_most, -kv_offset);
        least_query_.find(clamps.least_query, -q_offset);
        most_query_.find(clamps.most_query, -q_offset);
    }

    __device__ int first_key(int q) const { return first_most_.lower(first_least_.raise(q + low)); }
    __device__ int last_key(int q) const {
        const int key = last_most_.lower(last_least_.raise(q + high));
        return most_query_.or_behind(q, least_query_.or_before(q, key, -1), -1);
    }
    __device__ int first_query(int kv) const {
        const int q = last_least_.or_until(kv, kv - high, -kAnyDistance);
        return least_query_.raise(last_most_.or_behind(kv, q, kAnyDistance));
    }
    __device__ int last_query(int kv) const {
        const int q = first_least_.or_before(kv, kv - low, -kAnyDistance);
        return most_query_.lower(first_most_.or_from(kv, q, kAnyDistance));
    }

    __device__ Positions keys_of(int first_q, int last_q) const {
        first_q = least_query_.raise(first_q);
        last_q = most_query_.lower(last_q);
        if (first_q > last_q) return {0, -1};
        return {first_key(first_q), last_key(last_q)};
    }
    __device__ bool band_holds(int first_q, int last_q, int first_kv, int last_kv) const {
        if (least_query_.is_behind(first_q) || most_query_.is_before(last_q)) return false;
        return first_kv >= first_key(last_q) && last_kv <= last_key(first_q);
    }

  private:
    BoundOf<Clamp::first_least> first_least_;
    BoundOf<Clamp::first_most> first_most_;
    BoundOf<Clamp::last_least> last_least_;
    BoundOf<Clamp::last_most> last_most_;
    BoundOf<Clamp::least_query> least_query_;
    BoundOf<Clamp::most_query> most_query_;
};

// What can be derived from either kind of ends.
template <typename Ends> struct BandBetween : Ends {
    // Queries that may see any of the keys.
    __device__ Positions queries_of(int first_kv, int last_kv) const {
        return {this->first_query(first_kv), this->last_query(last_kv)};
    }
    // The same, limited to `last` and to `all`: the last key that a query may see, and the queries
    // that may see a key.
    __device__ int last_key_within(int q, int last) const { return min(this->last_key(q), last); }
    __device__ Positions queries_within(int kv, Positions all) const {
        return {max(this->first_query(kv), all.first), min(this->last_query(kv), all.last)};
    }
};

// No band: every distance is visible.
struct NoBand : BandBetween<Diagonals> {
    __device__ void find(const mod::Band&, long long, long long) {
        low = -kAnyDistance;
        high = kAnyDistance;
    }
    static __device__ int last_key_within(int, int last) { return last; }
    static __device__ Positions queries_within(int, Positions all) { return all; }
};

using VisibleBand =
    Select<mod::Mask::kHasBand,
           BandBetween<Select<mod::Mask::kClamps == 0, Diagonals, ClampedDiagonals>>, NoBand>;
