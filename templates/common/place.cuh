// Where a block works, and which part of the other sequence its rows can see.
#pragma once

#include "common/sequence_length.cuh"
#include "mod.cuh"

constexpr int kAnyDistance = 1 << 30; // no two positions are this far apart

// Members of mod::Clamps, as bits of mod::kClamps.
enum class Clamp { first_least, first_most, last_least, last_most, least_query, most_query };
constexpr bool has(Clamp clamp) { return (mod::kClamps >> static_cast<int>(clamp) & 1) != 0; }

// Positions first ... last; none where they are the other way round.
struct Positions {
    int first, last;
};

// One (b, h) with what the program computes once for it. Positions here are rows of the tensors;
// the program sees them shifted by the call's offsets.
struct HeadPlace {
    int b, h, h_kv;
    mod::Launch launch;
    mod::Head head;
    int low, high; // visible elements have low <= kv - q <= high, where there are no clamps
    // What the ends of the keys that a query sees are clamped to, and which queries see any.
    int first_least, first_most, last_least, last_most, least_query, most_query;

    __device__ HeadPlace(const AttentionArguments& attention, const mod::Arguments& arguments,
                         int index)
        : HeadPlace(attention, arguments, index / attention.heads, index % attention.heads,
                    index % attention.heads / (attention.heads / attention.kv_heads)) {}

    __device__ HeadPlace(const AttentionArguments& attention, const mod::Arguments& arguments,
                         int batch, int head_index, int kv_head)
        : HeadPlace(arguments, SequenceLength(attention, batch), head_index, kv_head) {}

    // Of a batch entry whose lengths are at hand.
    template <typename Length>
    __device__ HeadPlace(const mod::Arguments& arguments, const Length& length, int head_index,
                         int kv_head)
        : b(length.b()), h(head_index), h_kv(kv_head), launch(mod::at_launch(arguments)),
          head(mod::at_head(arguments, launch, b, h, h_kv)), low(-kAnyDistance),
          high(kAnyDistance) {
        if constexpr (mod::kHasBand) {
            const mod::Band band = mod::band(arguments, launch, head, b, h, h_kv);
            const long long shift = length.q_offset() - length.kv_offset();
            low = distance(band.low, shift);
            high = distance(band.high, shift);
        }
        find_clamps(arguments, length);
    }

    // The same place, with what another thread found out.
    __device__ HeadPlace(const AttentionArguments& attention, const mod::Arguments& arguments,
                         int batch, int head_index, int kv_head, int lowest, int highest)
        : b(batch), h(head_index), h_kv(kv_head), launch(mod::at_launch(arguments)),
          head(mod::at_head(arguments, launch, b, h, h_kv)), low(lowest), high(highest) {
        find_clamps(arguments, SequenceLength(attention, b));
    }

    // Of the keys that a query may see, by the band alone; the last is negative where there are
    // none because of the query.
    __device__ int first_key(int q) const {
        int key = q + low;
        if constexpr (has(Clamp::first_least)) key = max(key, first_least);
        if constexpr (has(Clamp::first_most)) key = min(key, first_most);
        return key;
    }
    __device__ int last_key(int q) const {
        int key = q + high;
        if constexpr (has(Clamp::last_least)) key = max(key, last_least);
        if constexpr (has(Clamp::last_most)) key = min(key, last_most);
        if constexpr (has(Clamp::least_query)) key = q < least_query ? -1 : key;
        if constexpr (has(Clamp::most_query)) key = q > most_query ? -1 : key;
        return key;
    }
    // Of the queries that may see a key.
    __device__ int first_query(int kv) const {
        int q = kv - high;
        if constexpr (has(Clamp::last_least)) q = kv <= last_least ? -kAnyDistance : q;
        if constexpr (has(Clamp::last_most)) q = kv > last_most ? kAnyDistance : q;
        if constexpr (has(Clamp::least_query)) q = max(q, least_query);
        return q;
    }
    __device__ int last_query(int kv) const {
        int q = kv - low;
        if constexpr (has(Clamp::first_least)) q = kv < first_least ? -kAnyDistance : q;
        if constexpr (has(Clamp::first_most)) q = kv >= first_most ? kAnyDistance : q;
        if constexpr (has(Clamp::most_query)) q = min(q, most_query);
        return q;
    }

    // What some query, or some key, of these positions may see: no end falls from one to the next.
    __device__ Positions keys_of(int first_q, int last_q) const {
        if constexpr (has(Clamp::least_query)) first_q = max(first_q, least_query);
        if constexpr (has(Clamp::most_query)) last_q = min(last_q, most_query);
        if (mod::kClamps != 0 && first_q > last_q) return {0, -1};
        return {first_key(first_q), last_key(last_q)};
    }
    __device__ Positions queries_of(int first_kv, int last_kv) const {
        return {first_query(first_kv), last_query(last_kv)};
    }

    // Whether every pair of these ranges (ends included) is inside the band.
    __device__ bool band_holds(int first_q, int last_q, int first_kv, int last_kv) const {
        if constexpr (mod::kClamps == 0)
            return first_kv - last_q >= low && last_kv - first_q <= high;
        if (has(Clamp::least_query) && first_q < least_query) return false;
        if (has(Clamp::most_query) && last_q > most_query) return false;
        return first_kv >= first_key(last_q) && last_kv <= last_key(first_q);
    }

  private:
    template <typename Length>
    __device__ void find_clamps(const mod::Arguments& arguments, const Length& length) {
        if constexpr (mod::kClamps != 0) {
            const mod::Clamps clamps = mod::clamps(arguments, launch, head, b, h, h_kv);
            const long long q_shift = -length.q_offset(), kv_shift = -length.kv_offset();
            first_least = distance(clamps.first_least, kv_shift);
            first_most = distance(clamps.first_most, kv_shift);
            last_least = distance(clamps.last_least, kv_shift);
            last_most = distance(clamps.last_most, kv_shift);
            least_query = distance(clamps.least_query, q_shift);
            most_query = distance(clamps.most_query, q_shift);
        }
    }

    // Saturates before and after the shift: a bound may be as far out as a program can write it.
    static __device__ int distance(long long bound, long long shift) {
        constexpr long long kFar = 1ll << 60, kAny = kAnyDistance;
        bound = (bound < -kFar ? -kFar : bound > kFar ? kFar : bound) + shift;
        return static_cast<int>(bound < -kAny ? -kAny : bound > kAny ? kAny : bound);
    }
};

// visit(element): of the program, at a query and a key of the tensors.
template <typename Visit>
__device__ inline auto visit_element(const AttentionArguments& attention,
                                     const mod::Arguments& arguments, const HeadPlace& place,
                                     int query, int key, Visit visit) {
    const SequenceLength length(attention, place.b);
    const int q = query + static_cast<int>(length.q_offset());
    const int kv = key + static_cast<int>(length.kv_offset());
    const mod::Row row =
        mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q);
    const mod::Column column =
        mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv);
    return visit(mod::At{arguments, place.launch, place.head, row, column, place.b, place.h,
                         place.h_kv, q, kv});
}

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
__device__ inline TileRange tiles_between(Positions positions, int length, int tile) {
    return tiles_between(positions.first, positions.last, length, tile);
}

// Tiles of `tile` keys that queries first_q ... last_q may see; none where a request has no queries
// there, of which the program must not be asked then.
__device__ inline TileRange visible_tiles(const HeadPlace& place, const SequenceLength& length,
                                          int first_q, int last_q, int tile) {
    if (!mod::kIsDense && first_q > last_q) return {0, 0};
    return tiles_between(place.keys_of(first_q, last_q), length.keys(), tile);
}
// Tiles of `tile` queries that may see keys first_kv ... last_kv, likewise.
template <typename Length>
__device__ inline TileRange seeing_tiles(const HeadPlace& place, const Length& length, int first_kv,
                                         int last_kv, int tile) {
    if (!mod::kIsDense && first_kv > last_kv) return {0, 0};
    return tiles_between(place.queries_of(first_kv, last_kv), length.queries(), tile);
}
