// A case on Hopper's kernels, with data of its own in each run.
#pragma once

#include <random>

#include <doctest/doctest.h>

#include "api/case.h"

namespace flexc::test {

inline void check_on_hopper(Case one) {
    static std::random_device source;
    const std::uint32_t seed = source();
    one.forward_kernel = ForwardKernel::hopper;
    CAPTURE(one.text);
    CAPTURE(seed);
    CAPTURE(std::string(flexc::name(one.dtype)));
    CHECK(run_case(one, Device::cuda(0), seed) == "");
}

} // namespace flexc::test
