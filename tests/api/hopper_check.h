// A case on an H200 or its like, with data of its own in each run.
#pragma once

#include <random>

#include <doctest/doctest.h>

#include "api/case.h"

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

} // namespace flexc::test
