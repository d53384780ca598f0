// Softmax of a thread's two rows, one block of keys after another. P = 2^(exponent - max_log2) is
// relative to a number of its row, so that no P overflows; sums of P follow the same number, and
// the output is divided by them at the end. The forms below differ in how they find it:
//
// BoundedSoftmax       logits have a known bound: the first block's maximum, for all blocks
// OnlineSoftmax        the running maximum, raised before a block's exponentials
// ScaledOnlineSoftmax  the same for logits that become exponents by a factor or an offset
// LateSoftmax          the running maximum so far, raised only after a block's P were too large
//
// They have one interface, that of BoundedSoftmax; Softmax is the one that suits the logits.
#pragma once

#include "common/select.h"
#include "sm90/exponentials.cuh"
#include "sm90/logits.cuh"

namespace sm90 {

constexpr int kNever = -1; // a pause of compute_p() that does not come

// Returns the largest score in kColumns of the thread's columns of row r, from the first-th on.
template <int kColumns>
__device__ float largest_of_columns(const Scores& scores, int r, int first = 0) {
    float even = scores[accumulator(r, first)], odd = scores[accumulator(r, first + 1)];
#pragma unroll
    for (int j = first + 2; j < first + kColumns; j += 2) {
        even = fmaxf(even, scores[accumulator(r, j)]);
        odd = fmaxf(odd, scores[accumulator(r, j + 1)]);
    }
    return fmaxf(even, odd);
}

// Returns the maximum of a row, offsets included, over the four threads that share it; at least
// `highest`.
__device__ inline float highest_of(const Scores& logits, const Logits& form, int r, float highest) {
#pragma unroll
    for (int part = 0; part < Logits::kOffsets; ++part) {
        constexpr int kColumns = kFragmentColumns / Logits::kOffsets;
        highest = fmaxf(highest, largest_of_columns<kColumns>(logits, r, part * kColumns) +
                                     form.offset(r, part));
    }
    return quad_max(highest);
}

// What all forms share. A form without a running maximum does not use `maximum` and `shrink`.
struct SoftmaxRows {
    float maximum[2];                    // running, of logits with offsets, or a little less
    float sum[2];                        // of this thread's P
    float shrink[2];                     // what the last rise of the maximum multiplies sums by
    float max_log2[2][Logits::kOffsets]; // subtracted from exponents

    __device__ SoftmaxRows() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            maximum[r] = negative_infinity();
            sum[r] = 0;
        }
    }

    // Makes exponentials that have not been computed yet come after `value`.
    __device__ void follow(float value) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int i = 0; i < Logits::kOffsets; ++i)
                compute_after(max_log2[r][i], value);
    }

  protected:
    __device__ bool saw_something(int r) const { return maximum[r] != negative_infinity(); }
    // A maximum leaves NaN out, which the sum of P has.
    __device__ bool sees_nothing(int r, float total) const {
        return !saw_something(r) && total == 0;
    }
    // Makes P of a row relative to this exponent.
    __device__ void place_max_log2(int r, float exponent, const Logits& form) {
#pragma unroll
        for (int part = 0; part < Logits::kOffsets; ++part)
            max_log2[r][part] =
                Logits::kHasOffset ? exponent - exponent_of_offset(r, part, form) : exponent;
    }
    static __device__ float exponent_of_offset(int r, int part, const Logits& form) {
        const float offset = form.offset(r, part);
        return Logits::kOffsetsAreExponents ? offset : form.exponent(offset);
    }
    // Turns logits into P and adds these to the sums. between() as in compute_p(); `anchor`: a
    // value that is there when max_log2 is.
    template <int kPause, typename Between, typename Take>
    __device__ void exponentiate(Scores& logits, const Logits& form, float anchor, Between between,
                                 Take take) {
        static_assert(kPause < kFragmentColumns, "the pause has to come");
        exponentiate_row(logits, form, 0, kPause,
                         [&](float done) { between(kPause == 0 ? anchor : done); });
        exponentiate_row(logits, form, 1, kNever, [](float) {});
#pragma unroll
        for (int i = 0; i < kScores / 2; ++i)
            take(i, logits[2 * i], logits[2 * i + 1]);
    }

  private:
    // Calls between() before the pair of columns that starts at `pause`.
    template <typename Between>
    __device__ void exponentiate_row(Scores& logits, const Logits& form, int r, int pause,
                                     Between between) {
        float even = sum[r], odd = 0;
#pragma unroll
        for (int j = 0; j < kFragmentColumns; j += 2) {
            if (j == pause) between(even);
            float& left = logits[accumulator(r, j)];
            float& right = logits[accumulator(r, j + 1)];
            const float from = max_log2[r][Logits::offset_of(j)];
            left = exponential(form.exponent_below(r, left, from), j);
            right = exponential(form.exponent_below(r, right, from), j + 1);
            even += left;
            odd += right;
        }
        sum[r] = even + odd;
    }
};

// Softmax of logits with a known bound: what the first block of keys decides is kept, and nothing
// is ever rescaled. The bound keeps the P of later blocks from overflowing.
class BoundedSoftmax : public SoftmaxRows {
    static constexpr float kLeastMaximum = kForm.exponent_bound - 54; // so that P are at most 2^54

  public:
    // Turns logits of a block of keys into P.
    // kPause, between: between(value) is called once, after the exponentials of kPause columns of a
    //   row, on which `value` depends, and before anything is taken; not at all with kNever.
    // is_first: whether this is the rows' first block.
    // rescale(shrink): called where earlier sums change by these factors already now.
    // take(i, left, right): gets the P of accumulators 2 i and 2 i + 1.
    template <int kPause, typename Between, typename Rescale, typename Take>
    __device__ void compute_p(Scores& logits, Logits& form, bool is_first, Between between, Rescale,
                              Take take) {
        if (is_first) fix_maximum(logits, form);
        exponentiate<kPause>(logits, form, logits[kScores - 1], between, take);
    }
    // Called after compute_p(), whose rise of the maximum it applies to earlier sums.
    template <typename Rescale> __device__ void rescale_after(Rescale) const {}

    // Returns the exponent, log2, that a row's P are relative to.
    __device__ float reference_exponent(int r, const Logits&) const { return max_log2[r][0]; }
    // Returns the log-sum-exp of a row, natural, when `total` is the sum of all threads.
    __device__ float lse(int r, float total, const Logits& form) const {
        const float at = reference_exponent(r, form), more = log2_fast(total) + form.lse_shift();
        return (at + more) * kLn2;
    }
    // Returns the exponent of a sink's weight, relative to the same.
    __device__ float exponent_of_sink(int r, float sink, const Logits& form) const {
        return sink * kLog2E - reference_exponent(r, form) - form.lse_shift();
    }
    // Returns whether no key was visible to a row; `total` is its sum over all threads.
    __device__ bool saw_nothing(int, float total) const { return total == 0; }

  private:
    __device__ void fix_maximum(const Scores& logits, const Logits& form) {
#pragma unroll
        for (int r = 0; r < 2; ++r)
            max_log2[r][0] = fmaxf(form.exponent(highest_of(logits, form, r, negative_infinity())),
                                   kLeastMaximum);
    }
};

// The running maximum rises before a block's exponentials, but only where the block's maximum
// exceeds it by enough: mostly, nothing that was summed has to be rescaled.
class OnlineMaximum : public SoftmaxRows {
  public:
    __device__ bool saw_nothing(int r, float total) const { return sees_nothing(r, total); }
    __device__ float reference_exponent(int r, const Logits& form) const {
        return form.exponent(maximum[r]);
    }
    __device__ float lse(int r, float total, const Logits& form) const {
        const float at = reference_exponent(r, form), more = log2_fast(total) + form.lse_shift();
        if (fabsf(at) >= kLargeExponent) return more * kLn2 + form.natural(maximum[r]);
        return (at + more) * kLn2;
    }
    __device__ float exponent_of_sink(int r, float sink, const Logits& form) const {
        const float at = reference_exponent(r, form);
        if (fabsf(at) >= kLargeExponent)
            return form.exponent(form.logit(sink) - maximum[r]) - form.lse_shift();
        return sink * kLog2E - at - form.lse_shift();
    }

  protected:
    // P are at most 2 to this power. The higher it is, the further o is from float64: a row's
    // largest P has no rounding error if it is 1.
    static constexpr float kHeadroom = 3;

    // Finds the rows' maxima, this block's included, and whether the running maximum is near
    // enough.
    __device__ void find_highest(const Scores& logits, const Logits& form, float (&highest)[2],
                                 bool (&is_near)[2]) const {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            highest[r] = highest_of(logits, form, r, maximum[r]);
            is_near[r] = form.exponent(highest[r]) - form.exponent(maximum[r]) <= kHeadroom;
        }
    }
    // Returns the running maximum as an exponent. If nothing was visible yet, any finite number
    // gives P = 2^-inf = 0.
    __device__ float exponent_of_maximum(int r, const Logits& form) const {
        return saw_something(r) ? form.exponent(maximum[r]) : 0;
    }
};

// Softmax of logits that are exponents as they are: nothing of them has been rounded, so that large
// ones can be subtracted from each other.
class OnlineSoftmax : public OnlineMaximum {
  public:
    template <int kPause, typename Between, typename Rescale, typename Take>
    __device__ void compute_p(Scores& logits, Logits& form, bool, Between between, Rescale,
                              Take take) {
        raise_maximum(logits, form);
        exponentiate<kPause>(logits, form, maximum[0] + maximum[1], between, take);
    }
    template <typename Rescale> __device__ void rescale_after(Rescale rescale) const {
        if (__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1)) rescale(shrink);
    }

  private:
    __device__ void raise_maximum(const Scores& logits, const Logits& form) {
        float highest[2];
        bool is_near[2];
        find_highest(logits, form, highest, is_near);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float before = form.exponent(maximum[r]);
            maximum[r] = is_near[r] ? maximum[r] : highest[r];
            const float at = exponent_of_maximum(r, form);
            shrink[r] = exp2_fast(before - at);
            sum[r] *= shrink[r];
            place_max_log2(r, at, form);
        }
    }
};

// Softmax of logits that become exponents by a factor or an offset. Exponents of large logits are
// rounded too coarsely to be subtracted from each other: there, the maximum is subtracted from the
// logits first. All rows of a warp do the same, so that branches do not diverge.
class ScaledOnlineSoftmax : public OnlineMaximum {
  public:
    template <int kPause, typename Between, typename Rescale, typename Take>
    __device__ void compute_p(Scores& logits, Logits& form, bool, Between between, Rescale,
                              Take take) {
        raise_maximum(logits, form);
        exponentiate<kPause>(logits, form, maximum[0] + maximum[1], between, take);
    }
    template <typename Rescale> __device__ void rescale_after(Rescale rescale) const {
        if (rises_) rescale(shrink);
    }

  private:
    __device__ void raise_maximum(Scores& logits, const Logits& form) {
        float highest[2];
        bool is_near[2];
        find_highest(logits, form, highest, is_near);
        rises_ = __any_sync(0xffffffffu, is_large_ || !is_near[0] || !is_near[1]);
        if (rises_) rise(logits, form, highest);
        if (Logits::kHasOffset && !is_large_) place_both(form);
    }
    __device__ void rise(Scores& logits, const Logits& form, const float (&highest)[2]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float by = maximum[r] - highest[r];
            maximum[r] = highest[r];
            shrink[r] = saw_something(r) ? exp2_fast(form.exponent(by)) : 1;
            sum[r] *= shrink[r];
        }
        is_large_ = are_large(exponent_of_maximum(0, form), exponent_of_maximum(1, form));
        if (is_large_)
            subtract_maxima(logits, form);
        else
            place_both(form);
    }
    __device__ void subtract_maxima(Scores& logits, const Logits& form) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float reference = saw_something(r) ? maximum[r] : 0;
#pragma unroll
            for (int j = 0; j < kFragmentColumns; ++j) {
                float& logit = logits[accumulator(r, j)];
                logit = logit + form.offset(r, Logits::offset_of(j)) - reference;
            }
#pragma unroll
            for (int part = 0; part < Logits::kOffsets; ++part)
                max_log2[r][part] = 0;
        }
    }
    __device__ void place_both(const Logits& form) {
        place_max_log2(0, exponent_of_maximum(0, form), form);
        place_max_log2(1, exponent_of_maximum(1, form), form);
    }
    static __device__ bool are_large(float x, float y) {
        return __any_sync(0xffffffffu, fmaxf(fabsf(x), fabsf(y)) >= kLargeExponent);
    }

    bool rises_ = false;    // some row's maximum in the warp, with this block
    bool is_large_ = false; // some row's maximum in the warp, as an exponent
};

// P are computed relative to the running maximum so far, and their sum tells afterwards whether
// that has to rise: no P waits for the maximum of its block. Where it rises, the block's P are
// computed again, so this is for scores whose maxima seldom rise after the first block; those of a
// slope, for one, may rise all along a row.
class LateSoftmax : public SoftmaxRows {
    // If a thread's P of a row and block sum to more than this, the running maximum has to rise.
    static constexpr float kMostP = 2 * kFragmentColumns;

  public:
    template <int kPause, typename Between, typename Rescale, typename Take>
    __device__ void compute_p(Scores& logits, Logits& form, bool is_first, Between between,
                              Rescale rescale, Take take) {
        static_assert(kPause < kFragmentColumns, "the pause has to come");
        find_exponents(logits, form);
        // between() has to be called.
        const bool knows_nothing = kPause == kNever && is_first;
        bool rises = knows_nothing;
        float total[2];
        if (!knows_nothing) {
            exponentiate_block<kPause>(logits, total, between, take);
            rises = has_too_much(total);
        }
        if (rises) {
            rise(logits, form);
            rescale(shrink);
            exponentiate_block<kNever>(logits, total, [](float) {}, take);
        }
        sum[0] += total[0];
        sum[1] += total[1];
    }
    template <typename Rescale> __device__ void rescale_after(Rescale) const {}

    __device__ bool saw_nothing(int r, float total) const { return sees_nothing(r, total); }
    // The running maximum is an exponent here.
    __device__ float reference_exponent(int r, const Logits&) const { return maximum[r]; }
    __device__ float lse(int r, float total, const Logits& form) const {
        const float at = reference_exponent(r, form), more = log2_fast(total) + form.lse_shift();
        if (fabsf(at) >= kLargeExponent) return more * kLn2 + form.natural_of_exponent(at);
        return (at + more) * kLn2;
    }
    __device__ float exponent_of_sink(int r, float sink, const Logits& form) const {
        return sink * kLog2E - reference_exponent(r, form) - form.lse_shift();
    }

  private:
    // Turns logits into exponents relative to the running maxima so far.
    __device__ void find_exponents(Scores& logits, const Logits& form) {
        if constexpr (Logits::kAreRelative) return;
#pragma unroll
        for (int r = 0; r < 2; ++r)
            place_max_log2(r, maximum_so_far(r), form);
#pragma unroll
        for (int j = 0; j < kFragmentColumns; ++j) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float& logit = logits[accumulator(r, j)];
                logit = form.exponent_below(r, logit, max_log2[r][Logits::offset_of(j)]);
            }
        }
    }

    // Turns exponents into P, and sets `total` to the rows' sums of this block. One sum for each
    // row: two take the registers that three warpgroups have left.
    template <int kPause, typename Between, typename Take>
    static __device__ void exponentiate_block(const Scores& exponents, float (&total)[2],
                                              Between between, Take take) {
        // Pairs of P before the pause, as many of each row, which are taken after it.
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

    // Returns whether the running maximum of some row of the warp has to rise.
    __device__ bool has_too_much(const float (&total)[2]) const {
        // A maximum ignores NaN, which no running maximum changes.
        const bool is_enough = fmaxf(total[0], total[1]) <= kMostP;
        return __any_sync(0xffffffffu, !is_enough || !has_maximum(0) || !has_maximum(1));
    }

    // Raises running maxima to the block's maxima, and makes exponents relative to them. Nothing
    // has been subtracted yet from exponents of rows whose running maximum is large: they are
    // rounded as those of the first block were.
    __device__ void rise(Scores& exponents, Logits& form) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float subtracted = maximum_so_far(r);
            const float most = highest_of_exponents(exponents, r, subtracted);
            const float after = fmaxf(maximum[r], most);
            shrink[r] = saw_something(r) ? exp2_fast(maximum[r] - after) : 1;
            sum[r] *= shrink[r];
            maximum[r] = after;
            // Running maxima and exponents have to change by the same number.
            const float by = after == negative_infinity() ? 0 : after - subtracted;
            if constexpr (Logits::kAreRelative) form.lower(r, by, maximum_so_far(r));
#pragma unroll
            for (int j = 0; j < kFragmentColumns; ++j)
                exponents[accumulator(r, j)] -= by;
        }
    }

  protected:
    // Returns whether exponents of the row are relative to its running maximum. They are not while
    // that is large or nothing was visible yet; then every block tests for a rise.
    __device__ bool has_maximum(int r) const {
        return Logits::kAreRelative && !Logits::kLineIsRelative
                   ? saw_something(r)
                   : fabsf(maximum[r]) < kLargeExponent;
    }
    // Returns what exponents of the row are relative to. Any finite number gives hidden elements P
    // = 2^-inf = 0.
    __device__ float maximum_so_far(int r) const { return has_maximum(r) ? maximum[r] : 0; }
    // Returns the largest exponent of a row over the four threads that share it, with what was
    // subtracted.
    static __device__ float highest_of_exponents(const Scores& exponents, int r, float subtracted) {
        return quad_max(largest_of_columns<kFragmentColumns>(exponents, r)) + subtracted;
    }
};

// Whether later blocks seldom have higher maxima: without a score mod, for what a 2-D key index,
// tables, kinds of keys or shifted reads add, and where the keys with the largest addends come
// first.
constexpr bool kMaximaSeldomRise =
    (mod::KeyIndex2d::kWidth > 0) || !mod::kHasScoreMod || mod::ForwardSchedule::kStartsAtHighest ||
    kForm.is_product || (Logits::kStartsWithBias && (Logits::kStartsWithTables || kReadsShifts));
constexpr bool kLogitsAreExact = Logits::kFactorIsOne && !Logits::kHasOffset;
using SoftmaxOfOutput = Select<Logits::kAreBounded, BoundedSoftmax,
                               Select<kMaximaSeldomRise, LateSoftmax,
                                      Select<kLogitsAreExact, OnlineSoftmax, ScaledOnlineSoftmax>>>;

// Finds the largest score of each row beside a softmax, whose own maximum may be lower, or none. A
// block of logits is looked at before it becomes P.
template <typename Base> class SoftmaxWithMaxScores : public Base {
    static constexpr bool kKeepsExponents = Logits::kAreRelative || Logits::kOffsetsAreExponents;

  public:
    template <int kPause, typename Between, typename Rescale, typename Take>
    __device__ void compute_p(Scores& logits, Logits& form, bool is_first, Between between,
                              Rescale rescale, Take take) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            if constexpr (Logits::kAreRelative)
                highest_[r] = fmaxf(highest_[r],
                                    Base::highest_of_exponents(logits, r, Base::maximum_so_far(r)));
            else if constexpr (Logits::kOffsetsAreExponents)
                highest_[r] = fmaxf(highest_[r], highest_exponent(logits, form, r));
            else
                highest_[r] = highest_of(logits, form, r, highest_[r]);
        }
        Base::template compute_p<kPause>(logits, form, is_first, between, rescale, take);
    }

    // Returns the largest score of a row that saw something.
    __device__ float max_score(int r, const Logits& form) const {
        const float at = kKeepsExponents ? highest_[r] : form.exponent(highest_[r]);
        if (fabsf(at) < kLargeExponent) return (at + form.lse_shift()) * kLn2;
        const float natural = kKeepsExponents ? Logits::natural_of(highest_[r], kLn2)
                                              : form.natural(highest_[r]);
        return natural + form.lse_shift() * kLn2;
    }

  private:
    static __device__ float highest_exponent(const Scores& logits, const Logits& form, int r) {
        float highest = negative_infinity();
#pragma unroll
        for (int j = 0; j < kFragmentColumns; ++j)
            highest = fmaxf(highest, form.exponent_below(r, logits[accumulator(r, j)],
                                                         -form.offset(r, 0)));
        return quad_max(highest);
    }

    // Largest logits with offsets, or exponents.
    float highest_[2] = {negative_infinity(), negative_infinity()};
};

using Softmax =
    Select<mod::kReturnsMaxScores, SoftmaxWithMaxScores<SoftmaxOfOutput>, SoftmaxOfOutput>;

} // namespace sm90
