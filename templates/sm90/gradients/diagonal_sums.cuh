// Sums dS, or elements of a gradient, over the diagonals of tiles that follow each other, for
// buffers whose indices use q - kv. Two warps of the producer warpgroup do so, each for itself.
//
// A word of the tile has two neighbouring keys. At an even distance d, the word at key q - d of an
// even query is on diagonals d and d - 1; that at key q - d - 1 of an odd query on d + 1 and d. A
// lane takes the words at its own distance modulo the number of keys: one in every row, so that no
// load is wasted. 64 distances, two for each lane, are a strip; its lanes have those of the first
// query of a tile that are 0 ... 63 keys behind it, or for the lower warp 64 ... 1 before it, and
// the same distances as many keys as a tile has away. With 64 keys, one warp has all distances, and
// each does half of the queries.
//
// From one tile to the next a strip moves by 64 keys, and is in three of them, with 64 keys in two.
// Its sums stay in registers until it has passed, so that few additions go to memory. Tiles of 128
// queries would need sums of two strips, and registers spill.
#pragma once

#include "sm90/backward_layout.cuh"
#include "sm90/gradients/distance_sums.cuh"

namespace sm90 {

static_assert(!mod::ReadGradients::kSumsDistances || mod::kQueryTile == kRowBlock);

// Sums of the diagonals around an even distance.
struct DiagonalSums {
    float before = 0, at = 0, after = 0;

    __device__ void add(unsigned even_query, unsigned odd_query) {
        constexpr SummedElement kKind{};
        at += flexc_first(kKind, even_query) + flexc_second(kKind, odd_query);
        before += flexc_second(kKind, even_query);
        after += flexc_first(kKind, odd_query);
    }
    // Adds the sums to memory. to: address of distance 0. A lane's neighbour has the next even
    // distance.
    __device__ void flush(DistanceSum* to, int distance, int lowest, int highest) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const float next = __shfl_down_sync(0xffffffffu, before, 1);
        if (lane < 31) after += next;
        const auto put = [&](int where, float sum) {
            if (where >= lowest && where <= highest) flexc_accumulate(to + where, sum);
        };
        if (lane == 0) put(distance - 1, before);
        put(distance, at);
        put(distance + 1, after);
    }
};

// A lane's words in the rows 2 kPair and 2 kPair + 1 of every eight. Lanes of four at a time take
// those rows of another eight in each step, such that where their words lie differs by one bitwise
// operation: the chunk of 16 bytes, before the swizzle, is the step's number xor the lanes'. So all
// are in different banks, and addresses cost little.
template <bool kUpper, int kPair> class LaneWords {
  public:
    static constexpr int kSteps = kRowBlock / 8;

    __device__ explicit LaneWords(unsigned d_scores) : d_scores_(d_scores) {
        // Computed again, or what follows would be kept in registers for every pair.
        const int lane = computed_again(static_cast<int>(threadIdx.x) % 32);
        const int key = 2 * kPair - 2 * lane;
        four_ = lane / 4 * (kGroupBytes | kChunkBytes);
        start_ = -(key >> 3) * kGroupBytes + (key & 7) * 2;
    }

    // Loads the words of a step. Returns whether they are as many keys away from the lane's
    // distance as a tile has, which only the upper warp's may be.
    __device__ bool load(int step, unsigned (&words)[2]) const {
        words[0] = load_shared_word(address(step, 0));
        words[1] = load_shared_word(address(step, 1));
        return kUpper && place(step, 0) >= kPanelBytes;
    }

  private:
    static constexpr int kGroupBytes = 8 * kRowBytes, kChunkBytes = 16;
    static constexpr int kPanelBytes = kSteps * kGroupBytes;
    static_assert(kPanelBytes == kQueryPanel || !mod::ReadGradients::kSumsDistances);

    // Returns the offset of a step's word, but for its row among eight. In the order of the lane's
    // steps its rows end with the panel, and go on with the first ones.
    __device__ int place(int step, int odd) const {
        return (four_ ^ (step * kGroupBytes | (step ^ (2 * kPair + odd)) * kChunkBytes)) + start_;
    }
    // Returns the address of a step's word. Of two panels, the upper warp's rows go on in the
    // second, the lower's begin there.
    __device__ unsigned address(int step, int odd) const {
        int from = place(step, odd);
        if constexpr (kSharesKeys)
            from &= kPanelBytes - 1;
        else if constexpr (!kUpper)
            from ^= kPanelBytes;
        return d_scores_ + from + (2 * kPair + odd) * kRowBytes;
    }

    const unsigned d_scores_;
    int four_, start_;
};

// Sums pairs of rows kBegin ... kEnd - 1 of a tile: `near` gets the lane's distances, `other` those
// that are a tile's keys away.
template <bool kUpper, int kBegin, int kEnd>
__device__ inline void sum_tile(unsigned d_scores, DiagonalSums& near, DiagonalSums& other) {
    constexpr int kAtOnce = 4; // steps, whose loads are in flight
    const LaneWords<kUpper, kBegin> words(d_scores);
#pragma unroll
    for (int first = 0; first < words.kSteps; first += kAtOnce) {
        unsigned word[kAtOnce][2];
        bool is_other[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            is_other[i] = words.load(first + i, word[i]);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (is_other[i])
                other.add(word[i][0], word[i][1]);
            else
                near.add(word[i][0], word[i][1]);
    }
    if constexpr (kBegin + 1 < kEnd) sum_tile<kUpper, kBegin + 1, kEnd>(d_scores, near, other);
}

// A warp's strip on its way through tiles of queries, in the order in which a block visits them.
class Strip {
  public:
    // to: address of distance 0.
    __device__ Strip(const AttentionArguments& attention, DistanceSum* to, bool is_upper)
        : to_(to), lowest_(1 - attention.kv_len), highest_(attention.q_len - 1),
          is_upper_(is_upper) {}

    // first_distance: that of the tile's first query and first key.
    __device__ void add_tile(unsigned d_scores, int first_distance) {
        if constexpr (kSharesKeys)
            is_upper_ ? add<true, 2, 4>(d_scores, first_distance)
                      : add<true, 0, 2>(d_scores, first_distance);
        else
            is_upper_ ? add<true, 0, 4>(d_scores, first_distance)
                      : add<false, 0, 4>(d_scores, first_distance);
        // A strip moves by half of the keys: it was above, is below, and then above again.
        if constexpr (!kSharesKeys) is_upper_ = !is_upper_;
    }
    // Called before tiles that do not follow the last one, and at the end.
    __device__ void flush() { pass_distance(distance_, {}, distance_); }

  private:
    static constexpr bool kGoesUp = mod::Mask::kHasBlockMask || !mod::kDeterministic;

    template <bool kUpper, int kBegin, int kEnd>
    __device__ void add(unsigned d_scores, int first_distance) {
        const int lane = static_cast<int>(threadIdx.x) % 32;
        const int near = first_distance + 2 * lane - (kUpper ? 0 : 64);
        const int other = near - mod::kKeyTile;
        DiagonalSums fresh;
        if constexpr (!kUpper) {
            sum_tile<kUpper, kBegin, kEnd>(d_scores, sums_, fresh);
            distance_ = near;
        } else if constexpr (kGoesUp) {
            sum_tile<kUpper, kBegin, kEnd>(d_scores, fresh, sums_);
            pass_distance(other, fresh, near);
        } else {
            sum_tile<kUpper, kBegin, kEnd>(d_scores, sums_, fresh);
            pass_distance(near, fresh, other);
        }
    }
    __device__ void pass_distance(int passed, const DiagonalSums& fresh, int distance) {
        sums_.flush(to_, passed, lowest_, highest_);
        sums_ = fresh;
        distance_ = distance;
    }

    DistanceSum* const to_;
    const int lowest_, highest_;
    bool is_upper_;
    DiagonalSums sums_;
    int distance_ = 0;
};

} // namespace sm90
