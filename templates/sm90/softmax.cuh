// The running maximum and sum of a thread's two rows.
#pragma once

#include "sm90/logits.cuh"

namespace sm90 {

struct Softmax {
    float maximum[2]; // of logits with their offsets
    float sum[2];     // of this thread's columns
    float shrink[2];  // what the last change of the maximum makes of earlier sums
    float origin[2];  // what is taken off an exponent

    __device__ Softmax() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            maximum[r] = negative_infinity();
            sum[r] = 0;
        }
    }

    __device__ void raise_maximum(const Scores& logits, const Logits& form) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float even = logits[accumulator(r, 0)], odd = logits[accumulator(r, 1)];
#pragma unroll
            for (int j = 2; j < kFragmentColumns; j += 2) {
                even = fmaxf(even, logits[accumulator(r, j)]);
                odd = fmaxf(odd, logits[accumulator(r, j + 1)]);
            }
            const float before = maximum[r];
            maximum[r] = quad_max(fmaxf(before, fmaxf(even, odd) + form.offset(r)));
            // Nothing visible yet: any finite origin gives 2^-inf = 0.
            origin[r] = maximum[r] == negative_infinity() ? 0 : form.exponent(maximum[r]);
            shrink[r] = exp2_fast(form.exponent(before) - origin[r]);
            if constexpr (Logits::kHasOffset) origin[r] -= form.exponent(form.offset(r));
        }
    }

    // Logits of one row become weights. At the first pair of columns from `pause` on, calls
    // between().
    template <typename Between>
    __device__ void exponentiate(Scores& logits, const Logits& form, int r, int pause,
                                 Between between) {
        float even = sum[r] * shrink[r], odd = 0;
#pragma unroll
        for (int j = 0; j < kFragmentColumns; j += 2) {
            if (j == pause) between(even);
            float& left = logits[accumulator(r, j)];
            float& right = logits[accumulator(r, j + 1)];
            left = exp2_fast(form.exponent_below(left, origin[r]));
            right = exp2_fast(form.exponent_below(right, origin[r]));
            even += left;
            odd += right;
        }
        sum[r] = even + odd;
    }
    __device__ void exponentiate(Scores& logits, const Logits& form, int r) {
        exponentiate(logits, form, r, kFragmentColumns, [](float) {});
    }
};

} // namespace sm90
