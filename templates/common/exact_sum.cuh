// Additions to exact sums by many threads at once, in any order.
#pragma once

#include "common/exact_sum.h"

__device__ inline void flexc_accumulate(exact::Sum* to, float x) {
    const exact::Term term = exact::term_of(__float_as_uint(x));
    const auto add = [](long long& word, long long amount) {
        if (amount != 0)
            atomicAdd(reinterpret_cast<unsigned long long*>(&word),
                      static_cast<unsigned long long>(amount));
    };
    if (term.flags != 0) {
        atomicOr(&to->flags, term.flags);
        return;
    }
    add(to->words[term.word], term.low);
    if (term.high != 0) add(to->words[term.word + 1], term.high);
}

__device__ inline float flexc_value(float sum) { return sum; }
__device__ inline float flexc_value(const exact::Sum& sum) {
    return __uint_as_float(exact::rounded(sum));
}
