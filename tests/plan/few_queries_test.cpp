// Which calls have the kernels for few queries, and into how many parts their keys are divided.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "plan/few_work.h"
#include "plan/plan.h"
#include "program_of.h"

using namespace flexc;
using namespace flexc::plan;

namespace {

// Returns the kernel of few queries; empty if there is none.
std::string kernel_of_few(const std::string& text, const CompileOptions& options) {
    auto mod = test::lowered(
        text, {.backward = false, .head_dim = options.head_dim, .head_dim_v = options.head_dim_v});
    const TargetProgram program(std::move(mod), options, *target_of("sm_90a"));
    const auto plan = make_plan(program);
    REQUIRE(plan);
    const auto found = std::ranges::find(plan->forward, Calls::few_queries, &Variant::calls);
    if (found == plan->forward.end()) return "";
    REQUIRE(found->candidates.size() == 1);
    CHECK(found != plan->forward.begin());
    CHECK(std::ranges::is_sorted(plan->forward, {}, &Variant::calls));
    const PassPlan pass = pass_of(program, *found, found->candidates.front());
    CHECK(pass.has_few_queries);
    CHECK(pass.steps.size() == 2);
    return std::string(found->candidates.front().template_path);
}

} // namespace

TEST_CASE(
    "few queries have a kernel of their own unless an option or a block mask speaks against it") {
    CompileOptions options{.dtype = DType::bf16, .head_dim = 128, .head_dim_v = 128};
    options.backward = false;
    CHECK(kernel_of_few("score", options) == "forward_few_sm90.cu");
    CHECK(kernel_of_few("mask_mod = q_idx >= kv_idx", options) == "forward_few_sm90.cu");
    CHECK(kernel_of_few("mask_mod = kv_idx % 7 != q_idx % 3", options) == "");
    const auto with = [&](auto change) {
        CompileOptions other = options;
        change(other);
        return kernel_of_few("score", other);
    };
    CHECK(with([](CompileOptions& o) { o.dtype = DType::f32; }) == "forward_few.cu");
    CHECK(with([](CompileOptions& o) { o.head_dim = o.head_dim_v = 256; }) == "forward_few.cu");
    CHECK(with([](CompileOptions& o) { o.kv_dtype = DType::e4m3; }) == "forward_few.cu");
    CHECK(with([](CompileOptions& o) { o.batch_invariant = true; }) == "");
    CHECK(with([](CompileOptions& o) { o.forward_kernel = ForwardKernel::specialized; }) == "");
    CHECK(with([](CompileOptions& o) { o.forward_kernel = ForwardKernel::generic; }) == "");
}

TEST_CASE("calls with at most 64 rows of queries that share keys have few") {
    for (const auto& [heads, kv_heads, queries, is_few] : {std::tuple{8, 8, 64, true},
                                                           {8, 8, 65, false},
                                                           {32, 8, 16, true},
                                                           {32, 8, 17, false},
                                                           {64, 1, 1, true},
                                                           {64, 1, 2, false},
                                                           {65, 1, 1, false}}) {
        CAPTURE(heads);
        CAPTURE(queries);
        CHECK(has_few_rows({4, heads, kv_heads, queries, 4096}) == is_few);
    }
}

TEST_CASE("kernels of few queries are chosen where a measurement found them faster") {
    struct Measured {
        DenseSizes sizes;
        std::int64_t visible_keys;
        bool are_faster;
    };
    for (const Measured& one : {
             // Heads that share keys, or too few blocks of the other kernel.
             Measured{{4, 32, 8, 1, 32768}, 32768, true},
             {{128, 32, 8, 1, 2048}, 2048, true},
             {{32, 64, 1, 1, 8192}, 8192, true},
             {{8, 32, 8, 16, 4096}, 4096, false}, // by 3 % only
             {{8, 32, 8, 16, 16384}, 16384, true},
             {{1, 8, 8, 16, 4096}, 4096, true},
             {{1, 32, 32, 1, 16384}, 16384, true},
             // Each key is read once by both, and the other's blocks fill the GPU.
             {{8, 8, 8, 1, 131072}, 131072, false},
             {{32, 32, 32, 1, 4096}, 4096, false},
             {{128, 32, 32, 4, 1024}, 1024, false},
             // Short calls, which another launch makes longer.
             {{1, 32, 8, 1, 512}, 512, false},
             {{1, 64, 1, 1, 1024}, 1024, false},
             {{8, 32, 8, 16, 8192}, 1039, false},
             {{1, 32, 8, 1, 32768}, 1, false},
             {{128, 32, 8, 1, 4096}, 1, true},
         }) {
        CAPTURE(one.sizes.batch);
        CAPTURE(one.sizes.heads);
        CAPTURE(one.visible_keys);
        CHECK(are_few_faster(one.sizes, one.visible_keys) == one.are_faster);
    }
}

TEST_CASE("parts of few queries' keys depend on sizes alone, and fill a GPU where they can") {
    const auto parts = [](const DenseSizes& sizes) { return few_work(sizes).parts / sizes.batch; };
    CHECK(parts({4, 32, 8, 1, 32768}) == 12);
    CHECK(parts({32, 64, 1, 1, 8192}) == 12);
    CHECK(parts({128, 32, 8, 1, 2048}) == 1);
    CHECK(parts({1, 32, 8, 1, 131072}) == 48);
    CHECK(parts({1, 8, 8, 1, 100}) == 1);
    // Where an entry has one part, nothing is joined.
    CHECK(few_work({128, 32, 8, 1, 2048}).merging_blocks == 0);
    CHECK(few_work({4, 32, 8, 1, 32768}).merging_blocks > 0);
    CHECK(few_work({2, 8, 8, 1, 1}).parts == 2);
    // No sizes make more parts than a workspace should have room for.
    for (const std::int64_t batch : {1, 3, 100, 70'000})
        for (const std::int64_t kv_heads : {1, 8, 256})
            for (const std::int64_t keys : {1, 5000, 1 << 20})
                CHECK(few_work({batch, kv_heads, kv_heads, 1, keys}).parts * kv_heads <=
                      kPartBlocks + batch * kv_heads);
}
