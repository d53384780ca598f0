// The level and sum of a thread's two rows: weights are relative to the level, which follows the
// maximum. Logits that are known to be small need no maximum: their weights are relative to the
// same level from the first key on, and neither overflow nor vanish.
#pragma once

#include "sm90/logits.cuh"

namespace sm90 {

struct Softmax {
    static constexpr float kFixedLevel = 20; // weights are at most 2^54, at least 2^-94
    static constexpr float kHeadroom = 8;    // weights are at most 2 to the power of it
    static constexpr bool kLazy = true && !Logits::kAreBounded;
    float peak_ = 0;
    bool rises_ = false;
    float maximum[2]; // of logits with their offsets, or a little less; none where they are bounded
    float sum[2];     // of this thread's columns
    float shrink[2];  // what the last change of the maximum makes of earlier sums
    float origin[2][Logits::kOffsets]; // what is taken off an exponent

    __device__ Softmax() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            maximum[r] = negative_infinity();
            sum[r] = 0;
            if constexpr (Logits::kAreBounded) origin[r][0] = kFixedLevel;
        }
    }

    __device__ void raise_maximum(const Scores& logits, const Logits& form) {
        if constexpr (Logits::kAreBounded) return;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float before = maximum[r];
            float highest = before;
#pragma unroll
            for (int part = 0; part < Logits::kOffsets; ++part) {
                constexpr int kColumns = kFragmentColumns / Logits::kOffsets;
                const int first = part * kColumns;
                float even = logits[accumulator(r, first)];
                float odd = logits[accumulator(r, first + 1)];
#pragma unroll
                for (int j = first + 2; j < first + kColumns; j += 2) {
                    even = fmaxf(even, logits[accumulator(r, j)]);
                    odd = fmaxf(odd, logits[accumulator(r, j + 1)]);
                }
                highest = fmaxf(highest, fmaxf(even, odd) + form.offset(r, part));
            }
            highest = quad_max(highest);
            // Where it would rise by little it stays, and what was summed stays with it.
            const bool stays = form.exponent(highest) - form.exponent(before) <= kHeadroom;
            maximum[r] = stays ? before : highest;
            // Nothing visible yet: any finite origin gives 2^-inf = 0.
            const float at = maximum[r] == negative_infinity() ? 0 : form.exponent(maximum[r]);
            shrink[r] = exp2_fast(form.exponent(before) - at);
#pragma unroll
            for (int part = 0; part < Logits::kOffsets; ++part)
                origin[r][part] =
                    Logits::kHasOffset ? at - form.exponent(form.offset(r, part)) : at;
        }
    }

    // Logits become exponents relative to the level so far; then whether it has to rise.
    __device__ void find_exponents(Scores& logits, const Logits& form) {
        int peak[2] = {0, 0};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float at = maximum[r] == negative_infinity() ? 0 : maximum[r];
#pragma unroll
            for (int part = 0; part < Logits::kOffsets; ++part)
                origin[r][part] =
                    Logits::kHasOffset ? at - form.exponent(form.offset(r, part)) : at;
        }
#pragma unroll
        for (int j = 0; j < kFragmentColumns; j += 2) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float& left = logits[accumulator(r, j)];
                float& right = logits[accumulator(r, j + 1)];
                const float from = origin[r][Logits::offset_of(j)];
                left = form.exponent_below(left, from);
                right = form.exponent_below(right, from);
                peak[r] = max(max(peak[r], __float_as_int(left)), __float_as_int(right));
            }
        }
        const int highest = max(peak[0], peak[1]);
        peak_ = __int_as_float(highest);
        rises_ = __any_sync(0xffffffffu, highest > __float_as_int(kHeadroom) ||
                                             fminf(maximum[0], maximum[1]) == negative_infinity());
    }
    __device__ void rise(Scores& exponents) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float even = exponents[accumulator(r, 0)], odd = exponents[accumulator(r, 1)];
#pragma unroll
            for (int j = 2; j < kFragmentColumns; j += 2) {
                even = fmaxf(even, exponents[accumulator(r, j)]);
                odd = fmaxf(odd, exponents[accumulator(r, j + 1)]);
            }
            const float highest = quad_max(fmaxf(even, odd));
            const bool seen = maximum[r] != negative_infinity();
            const float before = seen ? maximum[r] : 0;
            const bool stays = (seen && highest <= kHeadroom) || highest == negative_infinity();
            const float after = stays ? before : before + highest, by = after - before;
            if (!stays) maximum[r] = after;
            shrink[r] = seen ? exp2_fast(-by) : 1;
            sum[r] *= shrink[r];
#pragma unroll
            for (int j = 0; j < kFragmentColumns; ++j)
                exponents[accumulator(r, j)] -= by;
        }
    }

    // Whether earlier sums change, in any row of the warp.
    __device__ bool shrinks() const {
        if constexpr (kLazy) return rises_;
        return __any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1);
    }

    // What weights of a row are relative to, as an exponent.
    __device__ float level(int r, const Logits& form) const {
        return Logits::kAreBounded ? kFixedLevel
               : kLazy             ? maximum[r]
                                   : form.exponent(maximum[r]);
    }
    // Of a row, when `total` is the sum of all threads.
    __device__ bool saw_nothing(int r, float total) const {
        return Logits::kAreBounded ? total == 0 : maximum[r] == negative_infinity();
    }
    // Depends on everything that exponents of this block are taken relative to.
    __device__ float anchor(const Scores& logits) const {
        if constexpr (kLazy) return peak_;
        return Logits::kAreBounded ? logits[kScores - 1] : maximum[0] + maximum[1];
    }

    // Exponents that are not computed yet come after `value`.
    __device__ void follow(float value) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int i = 0; i < Logits::kOffsets; ++i)
                compute_after(origin[r][i], value);
    }

    // Logits of one row become weights. At the first pair of columns from `pause` on, calls
    // between().
    template <typename Between>
    __device__ void exponentiate(Scores& logits, const Logits& form, int r, int pause,
                                 Between between) {
        float even = Logits::kAreBounded || kLazy ? sum[r] : sum[r] * shrink[r], odd = 0;
#pragma unroll
        for (int j = 0; j < kFragmentColumns; j += 2) {
            if (j == pause) between(even);
            float& left = logits[accumulator(r, j)];
            float& right = logits[accumulator(r, j + 1)];
            const float from = origin[r][Logits::offset_of(j)];
            left = exp2_fast(kLazy ? left : form.exponent_below(left, from));
            right = exp2_fast(kLazy ? right : form.exponent_below(right, from));
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
