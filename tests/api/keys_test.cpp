// Two programs that differ must never share a kernel, whatever their authors intend.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "flexc/flexc.h"

using namespace flexc;

namespace {

// Of 8 queries of ones with one key of ones, 8 numbers each: the score after the program.
float score_of(const std::string& text) {
    auto kernel = compile(text, {.dtype = DType::f32,
                                 .head_dim = 8,
                                 .device = Device::cpu(),
                                 .backward = false,
                                 .cache = {.disk = false}});
    REQUIRE(kernel);
    std::vector<float> ones(64, 1.0f), o(64), lse(8);
    const auto rows = [](std::vector<float>& data, std::int64_t count) {
        return TensorView::contiguous(data.data(), DType::f32, {1, 1, count, 8});
    };
    auto plan = kernel->plan({.q_len = 8, .kv_len = 1});
    REQUIRE(plan);
    std::vector<std::byte> workspace(plan->workspace_bytes());
    REQUIRE(kernel->forward(*plan,
                            {rows(ones, 8), rows(ones, 1), rows(ones, 1), rows(o, 8),
                             TensorView::contiguous(lse.data(), DType::f32, {1, 1, 8})},
                            {}, {workspace.data(), workspace.size()}));
    return lse[0];
}

// The comment makes up in XXH3's sums for the changed factor, which has no secret to prevent it.
std::string program(char factor) {
    return "#" + std::string(34, '-') + "\nscore_mod = score * " + factor + "\n#" +
           std::string(441, '.') + "3$\"B" + (factor == '2' ? '3' : '2') + std::string(1203, '.') +
           "\n";
}

} // namespace

#if FLEXC_WITH_CPU
TEST_CASE(
    "a program that was made to look like another under a fast hash is not given its kernel") {
    const float twice = score_of(program('2'));
    const float thrice = score_of(program('3'));
    CHECK(twice == doctest::Approx(2 * 2.828427f));
    CHECK(thrice == doctest::Approx(3 * 2.828427f));
}
#endif
