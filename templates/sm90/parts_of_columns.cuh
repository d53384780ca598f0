// Computes what reads much for each element, in a loop over a few of a thread's columns at a time:
// unrolled for all of them it takes far longer to compile, and more instructions than caches hold.
#pragma once

#include "common/again.cuh"
#include "sm90/score_elements.cuh"

namespace sm90 {

// Pairs of columns in a part: fewer beside wide outputs, which leave fewer registers.
constexpr int kPartPairs = mod::kHeadDimV <= 64 ? 2 : 1;

template <int kColumns> struct PartsOfColumns {
    static_assert(kFragmentColumns % kColumns == 0);

    // Calls for each part: begin(first) with its first column, which returns false after the last
    // one; find(r, i, at) for the part's i-th column and each row; then take(r, j, is_found, found)
    // for each of the thread's columns.
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
                    // Hides that these are the same for all parts: what follows from them would
                    // be kept in registers.
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
