// Packs two floats as 16-bit neighbours in one word, the first in its low half.
#pragma once

#include "common/element.cuh"

namespace sm90 {

__device__ inline unsigned pack(flexc_bf16, float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
__device__ inline unsigned pack(flexc_f16, float low, float high) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

} // namespace sm90
