// Sums of some of a thread's elements, with the loops over terms and elements interchanged:
// registers hold what enters the terms of these elements, so that what a term reads is loaded once
// for all of them.
#pragma once

#include "common/carried_values.cuh"
#include "common/static_for.cuh"
#include "mod.cuh"

namespace sm90 {

// The sums of kCount elements. Policy has kTotals and visit_totals(), as mod::ElementSums.
template <typename Policy, int kCount> struct TermTotals {
    float of[kCount][Policy::kTotals + 1];

    // kept: what enters the terms of each. at: of the head. visit_elements(visit) calls
    // visit(which, at) for each of them.
    template <typename VisitElements>
    __device__ void compute(const CarriedValues<Policy::kCarried, kCount>& kept, const mod::At& at,
                            VisitElements visit_elements) {
        Policy::visit_totals([&](auto terms) {
            using Terms = decltype(terms);
            static_for<Terms::kSums>([&](auto sum) {
#pragma unroll
                for (int which = 0; which < kCount; ++which)
                    of[which][Terms::kFirst + decltype(sum)::kValue] = 0;
            });
            const typename Terms::Counter end = Terms::end(at);
#pragma unroll 1
            for (typename Terms::Counter counter = Terms::first(at); counter < end; ++counter)
                visit_elements([&](int which, const mod::At& at_element) {
                    float carried[Policy::kCarried + 1];
                    kept.load(which, carried);
                    const auto parts = Terms::parts(at_element, carried, counter);
                    static_for<Terms::kSums>([&](auto sum) {
                        constexpr int kSum = decltype(sum)::kValue;
                        of[which][Terms::kFirst + kSum] += parts.of[kSum];
                    });
                });
        });
    }
};

} // namespace sm90
