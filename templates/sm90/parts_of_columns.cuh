// What reads much for each element, for a few of a thread's columns at a time in a loop: written
// out for all of them, it takes far longer to compile, and more instructions than caches hold.
#pragma once

#include "common/again.cuh"
#include "sm90/score_elements.cuh"

namespace sm90 {

// Of a part: four, or two where wide results leave fewer registers.
constexpr int kPartPairs = mod::kHeadDimV <= 64 ? 2 : 1;

template <int kColumns> struct PartsOfColumns {
    static_assert(kFragmentColumns % kColumns == 0);

    // begin(first) of a part's first column, false after the last one; find(r, i, at) of the part's
    // i-th column and each row; then take(r, j, is_found, found) of each of the thread's columns.
    template <typename Begin, typename Find, typename Take>
    static __device__ void visit(const ScoreElements& elements, int first_key, Begin begin,
                                 Find find, Take take) {
#pragma unroll 1
        for (int first = 0; first < kFragmentColumns; first += kColumns) {
            if (!begin(first)) break;
            float found[kColumns][2];
#pragma unroll
            for (int i = 0; i < kColumns; ++i)
                elements.visit_element(first_key, first + i, [&](int r, mod::At at) {
                    // Else what is the same for all parts would be kept.
                    at.q = computed_again(at.q);
                    at.b = computed_again(at.b);
                    found[i][r] = find(r, i, at);
                });
#pragma unroll
            for (int j = 0; j < kFragmentColumns; ++j)
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    take(r, j, j / kColumns * kColumns == first, found[j % kColumns][r]);
        }
    }
};

} // namespace sm90
