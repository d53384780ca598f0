// Evaluates a mask over a warp's part of a tile into bits.
#pragma once

#include "common/select.h"
#include "common/static_for.cuh"
#include "mod.cuh"

// Returns the value of another lane.
template <typename T> __device__ inline T shuffled(const T& value, int lane) {
    constexpr int kWords = (static_cast<int>(sizeof(T)) + 3) / 4;
    T result = value;
    if constexpr (!__is_empty(T)) {
        unsigned words[kWords] = {};
        memcpy(words, &value, sizeof(T));
#pragma unroll
        for (int i = 0; i < kWords; ++i)
            words[i] = __shfl_sync(0xffffffffu, words[i], lane);
        memcpy(&result, words, sizeof(T));
    }
    return result;
}

// Bits of a lane's positions in a tile, set for those at most `last` from the tile's first
// position. A lane has two adjacent positions of each eight.
__device__ inline unsigned bits_to(int last) {
    const int count = last < 0 ? 0 : last / 8 * 2 + min(last % 8, 1) + 1;
    return count >= 32 ? ~0u : (1u << count) - 1;
}

// Extracts the bits of a lane's positions from bits of 32 positions: two bits of each byte, packed.
__device__ inline unsigned own_bits(unsigned all, int lane) {
    const unsigned bits = all >> lane % 4 * 2 & 0x03030303u;
    return (bits | bits >> 6 | bits >> 12 | bits >> 18) & 0xffu;
}

// Computes what 16 lines of a warp see of kCount others: lines are rows and others are keys, or in
// a backward lines are keys and others are queries. A lane owns lines lane / 4 and lane / 4 + 8,
// whose values are `own`, and two of each eight others, from lane % 4 * 2 on: bit j of visible[i]
// is its j-th other in its line i. Called by whole warps.
//
// Lanes share the work by others: visible(word, line, i) is the mask at the other 32 word + lane
// for the i-th line, which has the value `line`. Lines for which alike(x, i, y, j) holds see the
// same, so one of them is evaluated for all.
template <int kCount, typename Line, typename Alike, typename Visible>
__device__ inline void evaluate_together(unsigned (&visible)[2], const Line (&own)[2], int lane,
                                         Alike alike, Visible is_visible) {
    constexpr int kWords = (kCount + 31) / 32;
    static_assert(kCount <= 128, "a bit for each of a lane's positions");
    unsigned words[2][kWords] = {};
    unsigned waiting[2] = {~0u, ~0u}; // lanes
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll 1
        while (waiting[half] != 0) {
            const int leader = __ffs(waiting[half]) - 1;
            const int index = leader / 4 + 8 * half;
            const Line line = shuffled(own[half], leader);
            bool is_alike[2] = {};
#pragma unroll
            for (int i = half; i < 2; ++i) {
                is_alike[i] = alike(own[i], lane / 4 + 8 * i, line, index);
                waiting[i] &= ~__ballot_sync(0xffffffffu, is_alike[i]);
            }
#pragma unroll
            for (int word = 0; word < kWords; ++word) {
                const unsigned all = __ballot_sync(0xffffffffu, is_visible(word, line, index));
#pragma unroll
                for (int i = half; i < 2; ++i)
                    words[i][word] = is_alike[i] ? all : words[i][word];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        visible[i] = 0;
#pragma unroll
        for (int word = 0; word < kWords; ++word)
            visible[i] |= own_bits(words[i][word], lane) << 8 * word;
    }
}

// Whether others have so many values that a lane has registers for those of one other alone, beside
// those of two lines.
template <typename Other> constexpr bool kIsSeenByWords = sizeof(Other) > 6 * sizeof(int);

// Does the same one word after the other: visible(word, other, line, i), with other_of(word), which
// each lane computes once for all lines.
template <int kCount, typename Line, typename Alike, typename OtherOf, typename Visible>
__device__ inline void evaluate_by_words(unsigned (&visible)[2], const Line (&own)[2], int lane,
                                         Alike alike, OtherOf other_of, Visible is_visible) {
    static_assert(kCount <= 128, "a bit for each of a lane's positions");
    visible[0] = visible[1] = 0;
#pragma unroll 1
    for (int word = 0; word < (kCount + 31) / 32; ++word) {
        const auto other = other_of(word);
        unsigned seen[2];
        evaluate_together<32>(seen, own, lane, alike, [&](int, const Line& line, int index) {
            return is_visible(word, other, line, index);
        });
        visible[0] |= seen[0] << 8 * word;
        visible[1] |= seen[1] << 8 * word;
    }
}

// Selects parts of the mask by their period: all of them, those that repeat after some tiles of the
// loop, and those that do not.
struct EveryPart {
    static constexpr bool has(int) { return true; }
};
struct PartsThatRepeat {
    static constexpr bool has(int period) { return period != 0; }
};
struct PartsThatDiffer {
    static constexpr bool has(int period) { return period == 0; }
};

struct VisitsPart {
    template <typename Part, typename Visit> static __device__ void visit(Part part, Visit visit) {
        visit(part);
    }
};
struct PassesOver {
    template <typename Part, typename Visit> static __device__ void visit(Part, Visit) {}
};
template <typename Parts, typename Visit, int... kParts>
__device__ inline void for_parts(Visit visit, Indices<kParts...>) {
    (Select<Parts::has(mod::MaskPart<kParts>::kPeriod), VisitsPart, PassesOver>::visit(
         mod::MaskPart<kParts>{}, visit),
     ...);
}
// Calls visit(part) for each selected part.
template <typename Parts, typename Visit> __device__ inline void for_parts(Visit visit) {
    for_parts<Parts>(visit, IndicesTo<mod::Mask::kParts>{});
}

// The longest period of the first kCount parts; 0 if none repeats.
template <int kCount> struct LongestPeriod {
    static constexpr int kOwn = mod::MaskPart<kCount - 1>::kPeriod;
    static constexpr int kBefore = LongestPeriod<kCount - 1>::kValue;
    static constexpr int kValue = kOwn > kBefore ? kOwn : kBefore;
};
template <> struct LongestPeriod<0> {
    static constexpr int kValue = 0;
};
constexpr int kLongestPeriod = LongestPeriod<mod::Mask::kParts>::kValue;
static_assert(kLongestPeriod <= 2);

// A lane's bits of the parts that repeat, for each tile of a period.
class RepeatingBits {
  public:
    // find(bits, tile) computes the bits of each of the first tiles.
    template <typename Find> __device__ void fill(Find find) {
#pragma unroll
        for (int tile = 0; tile < kLongestPeriod; ++tile) {
            bits_[tile][0] = bits_[tile][1] = ~0u;
            find(bits_[tile], tile);
        }
    }
    __device__ void clear_hidden(unsigned (&visible)[2], int tile) const {
        const bool is_second = is_second_of_two(tile);
#pragma unroll
        for (int i = 0; i < 2; ++i)
            visible[i] &= is_second ? bits_[1][i] : bits_[0][i];
    }

  protected:
    static __device__ bool is_second_of_two(int tile) {
        return kLongestPeriod == 2 && tile % 2 != 0;
    }
    unsigned bits_[2][2];
};

// The same for lines with half a word each: two of them are packed into one word.
class RepeatingHalves : public RepeatingBits {
  public:
    template <typename Find> __device__ void fill(Find find) {
        RepeatingBits::fill([&](unsigned(&bits)[2], int tile) {
            find(bits, tile);
            bits[0] = (bits[0] & 0xffffu) | bits[1] << 16;
        });
    }
    __device__ void clear_hidden(unsigned (&visible)[2], int tile) const {
        unsigned both = is_second_of_two(tile) ? bits_[1][0] : bits_[0][0];
        asm volatile("" : "+r"(both)); // or halves would be kept
#pragma unroll
        for (int i = 0; i < 2; ++i)
            visible[i] &= both >> 16 * i;
    }
};
