// Caps, which bound scores: a capped score x becomes cap * tanh(x).
#pragma once

#include "common/math.cuh"
#include "common/select.h"
#include "sm90/logit_units.cuh"

namespace sm90 {

// tanh of bf16 attention's logits may be off by 2^-11; f16 keeps more, and gets a logistic function
// of full accuracy instead: cap * tanh(x) = 2 * cap * logistic(2 x) - cap.
template <typename E> constexpr bool kTanhIsExact = false;
template <> constexpr bool kTanhIsExact<flexc_f16> = true;

struct NoCap {
    // Returns the units of what apply() returns, and of what it is given.
    static __device__ LogitUnits units(const mod::At&) {
        return LogitUnits(kLog2E, 0, LogitForm::kFactorIsOne ? kLog2E : 1);
    }
    static __device__ float apply(float x) { return x; }
};
// A cap without its sign, which moves into the tanh. A cap of 0 becomes a tiny one, since 0 times
// -inf is NaN.
struct Cap {
    float size, sign;
    explicit __device__ Cap(const mod::At& at) {
        const float cap = mod::cap(at);
        size = cap == 0 ? 1e-30f : fabsf(cap);
        sign = cap < 0 ? -1.0f : 1.0f;
    }
};
struct TanhCap {
    static __device__ LogitUnits units(const mod::At& at) {
        const Cap cap(at);
        return LogitUnits(cap.size * kLog2E, 0, cap.sign);
    }
    static __device__ float apply(float x) { return tanh_fast(x); }
};
struct LogisticCap {
    static __device__ LogitUnits units(const mod::At& at) {
        const Cap cap(at);
        return LogitUnits(2 * cap.size * kLog2E, -cap.size * kLog2E, cap.sign * (-2 * kLog2E));
    }
    static __device__ float apply(float x) { return reciprocal_fast(1 + exp2_fast(x)); }
};
using LogitCap =
    Select<!LogitForm::kCapped, NoCap, Select<kTanhIsExact<mod::Element>, LogisticCap, TanhCap>>;

} // namespace sm90
