// A case on an H200 or its like, with data of its own in each run.
#pragma once

#include <initializer_list>
#include <random>

#include <doctest/doctest.h>

#include "api/case.h"
#include "api/random_choices.h"

namespace flexc::test {

// By whichever kernels the request gets.
inline void check_on_gpu(const Case& one) {
    static std::random_device source;
    const std::uint32_t seed = source();
    CAPTURE(one.text);
    CAPTURE(one.q_len);
    CAPTURE(one.kv_len);
    CAPTURE(one.head_dim);
    CAPTURE(std::string(flexc::name(one.dtype)));
    CAPTURE(seed);
    CHECK(run_case(one, Device::cuda(0), seed) == "");
}

inline void check_on_hopper(Case one) {
    one.forward_kernel = ForwardKernel::specialized;
    check_on_gpu(one);
}

// Draws the shape of a call and what else it asks for: heads and head dims of all kinds of tiles,
// and lengths that fill none.
inline void draw_call(RandomChoices& choices, Case& one) {
    const auto below = [&](int n) { return choices.below(n); };
    one.dtype = below(2) == 0 ? DType::bf16 : DType::f16;
    one.heads = 4;
    one.kv_heads = std::initializer_list<int>{1, 2, 4}.begin()[below(3)];
    one.q_len = 1 + below(300);
    one.kv_len = 1 + below(400);
    one.head_dim = std::initializer_list<int>{64, 128, 40, 80, 96, 192, 256}.begin()[below(7)];
    one.q_offset = below(2) * below(90);
    one.kv_offset = below(2) * below(90);
    one.scale = below(3) == 0 ? 0.25F : 0;
    one.with_d_lse = below(2) == 0;
    one.max_scores = below(4) == 0;
}

} // namespace flexc::test
