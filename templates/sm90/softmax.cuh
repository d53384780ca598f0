// The level and sum of a thread's two rows: weights are relative to the level, which follows the
// maximum. Logits that are known to be small have the level that their first block of keys gives
// them: none of their weights overflows.
#pragma once

#include "sm90/logits.cuh"

namespace sm90 {

struct Softmax {
    // Weights are at most 2 to the power of it, where a maximum is found. The higher, the further o
    // is from float64: a row's largest weight has no rounding error if it is 1.
    static constexpr float kHeadroom = 3;
    // Of bounded logits, so that weights are at most 2^54.
    static constexpr float kLeastLevel = mod::kExponentBound - 54;
    // Logits become weights relative to the levels so far, and then it is asked whether a level has
    // to rise: that needs no maximum, and no weight waits for it. A block whose levels rise takes
    // longer, and the scores of other mods may rise all along a row, as a slope's do.
    static constexpr bool kAsksLate =
        !Logits::kAreBounded && (mod::kKeysAreGrid || !mod::kHasScoreMod);
    // So much a thread's weights of a row and block may be together then.
    static constexpr float kMostWeight = 2 * kFragmentColumns;
    static constexpr int kNever = -1; // a pause of weigh() that does not come

    // Of logits with their offsets, or a little less; none where they are bounded. An exponent,
    // where it is asked late.
    float maximum[2];
    float sum[2];                      // of this thread's columns
    float shrink[2];                   // what the last change of the maximum makes of earlier sums
    float origin[2][Logits::kOffsets]; // what is taken off an exponent

    __device__ Softmax() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            maximum[r] = negative_infinity();
            sum[r] = 0;
        }
    }

    // Logits of a block of keys become weights: take(i, left, right) gets accumulators 2 i and
    // 2 i + 1; is_first: of the rows' blocks. between(value) comes once, before anything is taken
    // and after kPause columns of a row, or none, on which `value` depends. rescale() comes where
    // levels rise that are asked for late; of others shrinks() tells afterwards.
    template <int kPause, typename Between, typename Rescale, typename Take>
    __device__ void weigh(Scores& logits, Logits& form, bool is_first, Between between,
                          Rescale rescale, Take take) {
        static_assert(kPause < kFragmentColumns, "the pause has to come");
        if constexpr (kAsksLate) {
            find_exponents(logits, form);
            bool rises = is_first;
            float total[2];
            if (!is_first) {
                exponentiate<kPause>(logits, total, between, take);
                rises = has_too_much(total);
            }
            if (rises) {
                rise(logits, form);
                rescale();
                exponentiate<kNever>(logits, total, [](float) {}, take);
            }
            sum[0] += total[0];
            sum[1] += total[1];
        } else {
            if constexpr (!Logits::kAreBounded)
                raise_maximum(logits, form);
            else if (is_first)
                settle_level(logits, form);
            exponentiate(logits, form, 0, kPause,
                         [&](float done) { between(kPause == 0 ? anchor(logits) : done); });
            exponentiate(logits, form, 1, kNever, [](float) {});
#pragma unroll
            for (int i = 0; i < kScores / 2; ++i)
                take(i, logits[2 * i], logits[2 * i + 1]);
        }
    }

    // Logits become exponents relative to the levels so far.
    __device__ void find_exponents(Scores& logits, const Logits& form) {
        if constexpr (Logits::kAreRelative) return;
#pragma unroll
        for (int r = 0; r < 2; ++r)
            place_origin(r, level_so_far(r), form);
#pragma unroll
        for (int j = 0; j < kFragmentColumns; ++j) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float& logit = logits[accumulator(r, j)];
                logit = form.exponent_below(logit, origin[r][Logits::offset_of(j)]);
            }
        }
    }

    // Exponents become weights, and `total` the rows' sums of this block: one sum each, because two
    // for every row take the registers that three warpgroups have left.
    template <int kPause, typename Between, typename Take>
    static __device__ void exponentiate(const Scores& exponents, float (&total)[2], Between between,
                                        Take take) {
        // Pairs that wait to be taken: as many columns of each row.
        constexpr int kHeld = kPause == kNever ? 0 : kPause;
        float held[kHeld == 0 ? 1 : 2 * kHeld];
        if constexpr (kPause == 0) between(exponents[kScores - 1]);
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i) {
            const int r = fragment_row(2 * i);
            const float left = exp2_fast(exponents[2 * i]);
            const float right = exp2_fast(exponents[2 * i + 1]);
            total[r] = i < 2 ? left + right : total[r] + (left + right);
            if (i >= kHeld) {
                take(i, left, right);
                continue;
            }
            held[2 * i] = left;
            held[2 * i + 1] = right;
            if (i < kHeld - 1) continue;
            between(total[0] + total[1]);
#pragma unroll
            for (int k = 0; k < kHeld; ++k)
                take(k, held[2 * k], held[2 * k + 1]);
        }
    }

    // Whether some level of the warp has to rise.
    __device__ bool has_too_much(const float (&total)[2]) const {
        // NaN, which a maximum passes over, stays what it is at any level.
        const bool stays = fmaxf(total[0], total[1]) <= kMostWeight;
        return __any_sync(0xffffffffu, !stays || !saw_something(0) || !saw_something(1));
    }

    // Levels become the maximum of rows that are above them.
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
            const bool stays = saw_something(r) ? most <= 0 : most == negative_infinity();
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
            place_origin(r, at, form);
        }
    }

    // Whether earlier sums change, in any row of the warp.
    __device__ bool shrinks() const {
        if constexpr (Logits::kAreBounded || kAsksLate) return false;
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
        float even = Logits::kAreBounded ? sum[r] : sum[r] * shrink[r], odd = 0;
#pragma unroll
        for (int j = 0; j < kFragmentColumns; j += 2) {
            if (j == pause) between(even);
            float& left = logits[accumulator(r, j)];
            float& right = logits[accumulator(r, j + 1)];
            const float from = origin[r][Logits::offset_of(j)];
            left = exp2_fast(form.exponent_below(left, from));
            right = exp2_fast(form.exponent_below(right, from));
            even += left;
            odd += right;
        }
        sum[r] = even + odd;
    }

  private:
    // Of a row whose level is `at`.
    __device__ void place_origin(int r, float at, const Logits& form) {
#pragma unroll
        for (int part = 0; part < Logits::kOffsets; ++part)
            origin[r][part] = Logits::kHasOffset ? at - form.exponent(form.offset(r, part)) : at;
    }
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
