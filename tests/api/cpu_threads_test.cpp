// Threads of a plan: how many, and the caller's own.
#include <doctest/doctest.h>

#include <atomic>
#include <cfenv>
#include <cstring>
#include <thread>
#include <vector>

#include "flexc/flexc.h"

using namespace flexc;

namespace {

constexpr std::int64_t kHeads = 4, kLength = 500, kDim = 16;

struct Pool {
    std::atomic<int> calls = 0, most = 0;
    bool backwards = false; // one thread, from the last index to the first

    static void parallel_for(void* user, int count, void (*work)(void*, int), void* context) {
        Pool& pool = *static_cast<Pool*>(user);
        ++pool.calls;
        if (count > pool.most) pool.most = count;
        if (pool.backwards) {
            for (int i = count; i-- > 0;)
                work(context, i);
            return;
        }
        std::vector<std::jthread> threads;
        for (int i = 0; i < count; ++i)
            threads.emplace_back([=] { work(context, i); });
    }
    CpuThreads threads(int count) { return {count, parallel_for, this}; }
};

Result<Kernel> causal_tanh() {
    return compile(
        "score_mod = tanh(score)\nmask_mod = q_idx >= kv_idx",
        {.dtype = DType::f32, .head_dim = kDim, .device = Device::cpu(), .cache = {.disk = false}});
}

// o and all gradients of one forward and backward.
std::vector<float> results(const Kernel& kernel, const CpuThreads& threads) {
    const Sizes sizes{
        .batch = 1, .heads = kHeads, .kv_heads = kHeads, .q_len = kLength, .kv_len = kLength};
    const auto plan = kernel.plan(sizes, {}, {}, {.cpu_threads = threads});
    REQUIRE(plan.has_value());
    const std::size_t count = kHeads * kLength * kDim;
    std::vector<float> in(count), all(4 * count), lse(kHeads * kLength);
    for (std::size_t i = 0; i < count; ++i)
        in[i] = static_cast<float>(i % 41) / 16 - 1;
    std::vector<std::byte> memory(plan->workspace_bytes() + 256);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    const Workspace workspace{reinterpret_cast<void*>((address + 255) / 256 * 256),
                              plan->workspace_bytes()};
    auto view = [](float* data) {
        return TensorView::contiguous(data, DType::f32, {1, kHeads, kLength, kDim});
    };
    const TensorView q = view(in.data()), o = view(all.data());
    const TensorView row = TensorView::contiguous(lse.data(), DType::f32, {1, kHeads, kLength});
    CHECK(kernel.forward(*plan, {.q = q, .k = q, .v = q, .o = o, .lse = row}, {}, workspace)
              .has_value());
    CHECK(kernel
              .backward(*plan,
                        {.q = q,
                         .k = q,
                         .v = q,
                         .o = o,
                         .lse = row,
                         .d_out = q,
                         .dq = view(all.data() + count),
                         .dk = view(all.data() + 2 * count),
                         .dv = view(all.data() + 3 * count)},
                        {}, {}, workspace)
              .has_value());
    return all;
}

} // namespace

TEST_CASE("a plan's calls run on the caller's threads, as many as asked for, with the same bits") {
    const auto kernel = causal_tanh();
    REQUIRE(kernel.has_value());
    const std::vector<float> expected = results(*kernel, {.count = 1});
    auto same = [&](const std::vector<float>& got) {
        return std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0;
    };
    CHECK(same(results(*kernel, {})));
    for (const int count : {1, 2, 5})
        for (const bool backwards : {false, true}) {
            CAPTURE(count);
            Pool pool;
            pool.backwards = backwards;
            CHECK(same(results(*kernel, pool.threads(count))));
            CHECK(pool.most == (count == 1 ? 0 : count));
            CHECK((pool.calls > 0) == (count > 1));
        }
    const auto refused =
        kernel->plan({.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 1, .kv_len = 1}, {}, {},
                     {.cpu_threads = {.count = -1}});
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().code == ErrorCode::invalid_option);
}

TEST_CASE("calls of several threads at the same time, again and again, have the same bits") {
    const auto kernel = causal_tanh();
    REQUIRE(kernel.has_value());
    const std::vector<float> expected = results(*kernel, {.count = 1});
    std::atomic<int> same = 0;
    constexpr int kCallers = 5, kRounds = 4;
    for (int round = 0; round < 2; ++round) { // threads come and go
        std::vector<std::jthread> callers;
        for (int caller = 0; caller < kCallers; ++caller)
            callers.emplace_back([&, caller] {
                for (int i = 0; i < kRounds; ++i) {
                    const auto got = results(*kernel, {.count = (caller + i) % 4});
                    same +=
                        std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0;
                }
            });
    }
    CHECK(same == 2 * kCallers * kRounds);
}

TEST_CASE("all threads of a call round as its caller does") {
    const auto kernel = causal_tanh();
    REQUIRE(kernel.has_value());
    const std::vector<float> nearest = results(*kernel, {});
    REQUIRE(std::fesetround(FE_UPWARD) == 0);
    const std::vector<float> expected = results(*kernel, {.count = 1}),
                             upward = results(*kernel, {});
    REQUIRE(std::fesetround(FE_TONEAREST) == 0);
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    CHECK(same(upward, expected));
    CHECK_FALSE(same(upward, nearest));
    CHECK(same(results(*kernel, {}), nearest));
}
