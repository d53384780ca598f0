// The level and sum of a thread's two rows: weights are relative to the level, which follows the
// maximum. Logits that are known to be small have the level that their first block of keys gives
// them: none of their weights overflows.
#pragma once

#include "sm90/logits.cuh"

namespace sm90 {

struct Softmax {
    // Weights are at most 2 to the power of it. The higher, the further o is from float64: a row's
    // largest weight has no rounding error if it is 1.
    static constexpr float kHeadroom = mod::kKeysAreGrid ? 5 : 3;
    // Of bounded logits, so that weights are at most 2^54.
    static constexpr float kLeastLevel = mod::kExponentBound - 54;
    // With a grid of keys, logits become exponents relative to the levels so far before it is asked
    // whether one rises. That is a comparison of integers then, of which one instruction does two.
    static constexpr bool kAsksLate = mod::kKeysAreGrid && !Logits::kAreBounded;

    // Of logits with their offsets, or a little less; none where they are bounded. An exponent,
    // where it is asked late.
    float maximum[2];
    float sum[2];                      // of this thread's columns
    float shrink[2];                   // what the last change of the maximum makes of earlier sums
    float origin[2][Logits::kOffsets]; // what is taken off an exponent
    float highest;                     // of this thread's exponents, at least 0
    bool rises;                        // some level of the warp does

    __device__ Softmax() : highest(0), rises(false) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            maximum[r] = negative_infinity();
            sum[r] = 0;
        }
    }

    // All that exponents of this block are taken relative to; is_first: of the rows' blocks.
    // `between` comes before levels rise for certain.
    template <typename Between>
    __device__ void find_level(Scores& logits, Logits& form, bool is_first, Between between) {
        if constexpr (Logits::kAreBounded) {
            if (is_first) settle_level(logits, form);
        } else if constexpr (kAsksLate) {
            find_exponents(logits, form);
            between();
            if (rises) rise(logits, form);
        } else {
            raise_maximum(logits, form);
        }
    }

    // Logits become exponents relative to the levels so far.
    __device__ void find_exponents(Scores& logits, const Logits& form) {
        // Positive floats are in the order of their bits, and those of negative ones are below 0.
        int most[2] = {0, 0};
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float at = level_so_far(r);
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
                if constexpr (!Logits::kAreRelative) {
                    left = form.exponent_below(left, from);
                    right = form.exponent_below(right, from);
                }
                most[r] = max(max(most[r], __float_as_int(left)), __float_as_int(right));
            }
        }
        highest = __int_as_float(max(most[0], most[1]));
        rises = __any_sync(0xffffffffu, __float_as_int(highest) > __float_as_int(kHeadroom) ||
                                            !saw_something(0) || !saw_something(1));
    }

    // Levels of rows whose exponents are beyond kHeadroom become their maximum.
    __device__ void rise(Scores& exponents, Logits& form) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float even = exponents[accumulator(r, 0)], odd = exponents[accumulator(r, 1)];
#pragma unroll
            for (int j = 2; j < kFragmentColumns; j += 2) {
                even = fmaxf(even, exponents[accumulator(r, j)]);
                odd = fmaxf(odd, exponents[accumulator(r, j + 1)]);
            }
            const float most = quad_max(fmaxf(even, odd));
            const bool stays = saw_something(r) ? most <= kHeadroom : most == negative_infinity();
            // Levels and exponents have to change by the same number.
            const float before = level_so_far(r), after = stays ? before : before + most;
            const float by = after - before;
            shrink[r] = saw_something(r) ? exp2_fast(-by) : 1;
            sum[r] *= shrink[r];
            if (!stays) maximum[r] = after;
            if constexpr (Logits::kAreRelative) form.lower(r, by);
#pragma unroll
            for (int j = 0; j < kFragmentColumns; ++j)
                exponents[accumulator(r, j)] -= by;
        }
    }

    __device__ void settle_level(const Scores& logits, const Logits& form) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            origin[r][0] =
                fmaxf(form.exponent(highest_of(logits, form, r, negative_infinity())), kLeastLevel);
    }

    __device__ void raise_maximum(const Scores& logits, const Logits& form) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float before = maximum[r];
            const float highest = highest_of(logits, form, r, before);
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

    // Whether earlier sums change, in any row of the warp.
    __device__ bool shrinks() const {
        if constexpr (kAsksLate) return rises;
        return __any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1);
    }

    // What weights of a row are relative to, as an exponent.
    __device__ float level(int r, const Logits& form) const {
        if constexpr (kAsksLate) return maximum[r];
        return Logits::kAreBounded ? origin[r][0] : form.exponent(maximum[r]);
    }
    // Of a row, when `total` is the sum of all threads.
    __device__ bool saw_nothing(int r, float total) const {
        return Logits::kAreBounded ? total == 0 : !saw_something(r);
    }
    // Depends on everything that exponents of this block are taken relative to.
    __device__ float anchor(const Scores& logits) const {
        if constexpr (kAsksLate) return highest;
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
        float even = Logits::kAreBounded || kAsksLate ? sum[r] : sum[r] * shrink[r], odd = 0;
#pragma unroll
        for (int j = 0; j < kFragmentColumns; j += 2) {
            if (j == pause) between(even);
            float& left = logits[accumulator(r, j)];
            float& right = logits[accumulator(r, j + 1)];
            const float from = origin[r][Logits::offset_of(j)];
            left = exp2_fast(kAsksLate ? left : form.exponent_below(left, from));
            right = exp2_fast(kAsksLate ? right : form.exponent_below(right, from));
            even += left;
            odd += right;
        }
        sum[r] = even + odd;
    }
    __device__ void exponentiate(Scores& logits, const Logits& form, int r) {
        exponentiate(logits, form, r, kFragmentColumns, [](float) {});
    }

  private:
    // Of a row, with offsets, and at least `highest`.
    static __device__ float highest_of(const Scores& logits, const Logits& form, int r,
                                       float highest) {
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
        return quad_max(highest);
    }
    __device__ bool saw_something(int r) const { return maximum[r] != negative_infinity(); }
    // Nothing visible yet: from any finite origin, what is hidden has the weight 2^-inf = 0.
    __device__ float level_so_far(int r) const { return saw_something(r) ? maximum[r] : 0; }
};

} // namespace sm90
