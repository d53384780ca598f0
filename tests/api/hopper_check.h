// A case on an H200 or its like, or on the CPU, with data of its own in each run.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "api/case.h"
#include "api/random_choices.h"
#include "random.h"

namespace flexc::test {

inline void check_on(Device device, const Case& one) {
    static std::random_device source;
    const std::uint32_t seed = source();
    CAPTURE(one.text);
    CAPTURE(one.q_len);
    CAPTURE(one.kv_len);
    CAPTURE(one.head_dim);
    CAPTURE(std::string(flexc::name(one.dtype)));
    CAPTURE(seed);
    CHECK(run_case(one, device, seed) == "");
}

// On the CPU instead, of sizes that one core has done soon.
inline void check_on_cpu(Case one) {
    constexpr std::int64_t kMostQueries = 70, kMostKeys = 90;
    one.q_len = std::min(one.q_len, kMostQueries);
    one.kv_len = std::min(one.kv_len, kMostKeys);
    one.head_dim = 8 + one.head_dim % 32;
    one.head_dim_v = 0;
    one.forward_kernel = ForwardKernel::automatic;
    one.backward_kernel = BackwardKernel::automatic;
    check_on(Device::cpu(), one);
}

// By whichever kernels the request gets; on the CPU where FLEXC_TEST_DEVICE says so, so that
// members of classes are compared with float64 without a GPU too.
inline void check_on_gpu(const Case& one) {
    const char* device = std::getenv("FLEXC_TEST_DEVICE");
    if (device != nullptr && std::string_view(device) == "cpu") return check_on_cpu(one);
    check_on(Device::cuda(0), one);
}

inline void check_on_hopper(Case one) {
    one.forward_kernel = ForwardKernel::specialized;
    check_on_gpu(one);
}

// Checks so many random members of a class, which Cases::next() draws.
template <typename Cases, typename Check, typename... Options>
void check_members(int count, Check check, Options... options) {
    const std::uint32_t seed = seed_of_members();
    CAPTURE(seed);
    Cases cases(seed, options...);
    for (int i = 0; i < count; ++i)
        check(cases.next());
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

// The same for the gradients of learned buffers, with head dims of which Hopper's backward has
// tiles.
inline void draw_backward_call(Random& random, Case& one) {
    constexpr std::array kTypes = {DType::bf16, DType::bf16, DType::f16};
    constexpr std::array kKvHeads = {1, 2, 4};
    constexpr std::array kHeadDims = {64, 64, 128, 40, 96, 192};
    one.dtype = random.pick(kTypes);
    one.batch = 2;
    one.heads = 4;
    one.kv_heads = random.pick(kKvHeads);
    one.head_dim = random.pick(kHeadDims);
    one.q_len = random.integer(1, 330);
    one.kv_len = random.integer(1, 330);
    one.q_offset = random.chance(50) ? random.integer(0, 89) : 0;
    one.kv_offset = random.chance(30) ? random.integer(0, 50) : 0;
    one.with_d_lse = random.chance(50);
    one.deterministic = random.chance(20);
}

// Programs of these tests have a block mask if they have this.
inline bool has_block_mask(const Case& one) {
    return one.text.find("(q_idx // 40) % 2 == (kv_idx // 40) % 2") != std::string::npos;
}
// Demands Hopper's backward where it has to be there: wide heads may have no room for sums, and
// blocks take no turns at tiles that come from a block mask.
inline void demand_backward(Case& one) {
    if (one.head_dim <= 128 && !(has_block_mask(one) && one.deterministic))
        one.backward_kernel = BackwardKernel::specialized;
}

} // namespace flexc::test
