// Units of logits: factors that turn them into exponents, to the base of two, and into scores.
#pragma once

#include "common/math.cuh"
#include "sm90/logit_form.cuh"
#include "sm90/warpgroup.cuh"

namespace sm90 {

class LogitUnits {
  public:
    // of_addends: factor from scores, and what is added to them, to logits.
    explicit __device__ LogitUnits(float factor, float lse_shift = 0, float of_addends = 1)
        : factor_(factor), lse_shift_(lse_shift), of_addends_(of_addends) {}

    __device__ float factor() const { return LogitForm::kFactorIsOne ? 1.0f : factor_; }
    // Returns a logit without its offset, or a maximum with it, as an exponent. Rounded alike
    // everywhere, so that a maximum that stays shrinks sums by exactly 1.
    __device__ float exponent(float logit) const {
        return LogitForm::kFactorIsOne ? logit : __fmul_rn(logit, factor_);
    }
    // Returns a score as a logit, rounded as addends are, so that equal ones stay equal.
    __device__ float logit(float score) const {
        return LogitForm::kFactorIsOne ? multiply_finite(score, kLog2E)
                                       : score * (kLog2E / factor_);
    }
    __device__ float exponent_below(int, float logit, float max_log2) const {
        return LogitForm::kFactorIsOne ? logit - max_log2 : fmaf(logit, factor_, -max_log2);
    }
    // Returns a large logit as a score. The largest scores are the largest float in a logit's
    // units, too.
    __device__ float natural(float logit) const {
        return natural_of(logit, LogitForm::kFactorIsOne ? kLn2 : factor_ * kLn2);
    }
    static __device__ float natural_of(float logit, float factor) {
        return fabsf(logit) == kMostFinite ? logit : multiply_finite(logit, factor);
    }
    // Returns a large exponent as a score. An addend that is too large for units of products is the
    // largest float in these, and in the result.
    __device__ float natural_of_exponent(float at) const {
        constexpr float kNearlyMost = 0x1.ffffep127f;
        if (LogitForm::kDividesAddends && fabsf(at) >= exponent(kNearlyMost))
            return copysignf(kMostFinite, at);
        return natural_of(at, kLn2);
    }
    __device__ float lse_shift() const { return lse_shift_; }
    __device__ float of_addends() const { return of_addends_; }

    // Return an addend of scores, and one that is tabulated, in units of logits. Finite numbers
    // stay finite: only -inf hides.
    __device__ float of_addend(float addend) const {
        return LogitForm::kFactorIsOne ? multiply_finite(addend, kLog2E) : addend * of_addends_;
    }
    __device__ float of_tabulated(float addend) const {
        return LogitForm::kFactorIsOne ? addend : addend * of_addends_;
    }

  private:
    float factor_, lse_shift_, of_addends_;
};

} // namespace sm90
