// Sizes, offsets and views that no honest caller passes: each is refused, or planned without any
// product of them wrapping. Run under -fsanitize=undefined it finds what wraps.
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "cpu/work.h"
#include "cpu_options.h"
#include "flexc/flexc.h"
#include "fresh_seed.h"
#include "runtime/alignment.h"
#include "runtime/cuda_workspace.h"
#include "support/amounts.h"

using namespace flexc;
using test::cpu_options;
using test::has_cpu;

namespace {

constexpr std::int64_t kMost = INT64_MAX, kLongest = (std::int64_t{1} << 30) - 1;

class Hostile {
  public:
    std::int64_t number() {
        constexpr std::array<std::int64_t, 20> kNumbers = {
            -1,        0,         1,         1,         2,         3,        7,
            64,        100,       1 << 15,   1 << 20,   kLongest,  kLongest, kLongest + 1,
            INT32_MAX, 1ll << 31, 1ll << 32, 1ll << 62, INT64_MIN, kMost};
        const auto pick = engine_() % (kNumbers.size() + 3);
        if (pick < kNumbers.size()) return kNumbers[pick];
        return static_cast<std::int64_t>(engine_()) >> engine_() % 64;
    }
    bool rarely() { return engine_() % 8 == 0; }

  private:
    std::mt19937_64 engine_{test::fresh_seed()};
};

Kernel compiled(const char* text) {
    auto kernel = compile(text, cpu_options());
    REQUIRE_MESSAGE(kernel, kernel.error().message);
    return *kernel;
}

} // namespace

TEST_CASE("amounts stay at the greatest instead of wrapping") {
    using namespace support;
    CHECK(times<std::int64_t>(1ll << 32, 1ll << 32) == kMost);
    CHECK(times<std::int64_t>(3, 5) == 15);
    CHECK(plus<std::int64_t>(kMost, 1) == kMost);
    CHECK(plus<std::size_t>(SIZE_MAX - 1, 2) == SIZE_MAX);
    CHECK(product<std::size_t>(1ull << 40, 1 << 20, 1 << 10) == SIZE_MAX);
    CHECK(product<std::int64_t>(3, 5, 7) == 105);
    CHECK(rounded_up(1, 256) == 256);
    CHECK(rounded_up(256, 256) == 256);
    CHECK(rounded_up(SIZE_MAX - 3, 256) == SIZE_MAX);
    CHECK(runtime::aligned(SIZE_MAX) == SIZE_MAX);
}

TEST_CASE("views of any rank and shape are safe to make and to ask") {
    const std::vector<std::int64_t> many(100, 3);
    const auto view = TensorView::contiguous(nullptr, DType::f32, std::span(many));
    CHECK(view.rank > kMaxDims);
    CHECK(view.elements() == 0);
    CHECK(TensorView::contiguous(nullptr, DType::f32, {1ll << 40, 1ll << 40}).elements() == kMost);
    TensorView negative;
    negative.rank = -5;
    CHECK(negative.elements() == 0);
}

TEST_CASE("hostile sizes and offsets are refused or planned without wrapping") {
    if (!has_cpu()) return;
    // Its block mask is made by launches: planning does no work for each tile.
    const std::array kernels = {
        compiled("buffer doc: i32[KV_LEN]\nmask_mod = doc[q_idx] == doc[kv_idx] or b * h > 3"),
        compiled("buffer a: f32[B, H, Q_LEN, KV_LEN] grad\nscore_mod = score + a[b, h, q_idx, "
                 "kv_idx]"),
        compiled("buffer t: f32[H] grad\nscore_mod = score * t[h]"), compiled("score")};
    Hostile hostile;
    int accepted = 0;
    for (int i = 0; i < 20000; ++i) {
        const auto length = [&] { return hostile.number(); };
        const std::int64_t kv_heads = length();
        const Sizes sizes{length(), hostile.rarely() ? length() : kv_heads, kv_heads, length(),
                          length()};
        PlanOptions options;
        if (hostile.rarely()) options.q_offset = length();
        if (hostile.rarely()) options.kv_offset = length();
        if (hostile.rarely()) options.global_q_len = length();
        if (hostile.rarely()) options.global_kv_len = length();
        CAPTURE(sizes.batch);
        CAPTURE(sizes.heads);
        CAPTURE(sizes.kv_heads);
        CAPTURE(sizes.q_len);
        CAPTURE(sizes.kv_len);
        for (const Kernel& kernel : kernels) {
            const auto plan = kernel.plan(sizes, {}, {}, options);
            if (!plan) {
                CHECK((plan.error().code == ErrorCode::limit ||
                       plan.error().code == ErrorCode::invalid_option));
                continue;
            }
            ++accepted;
            // Keys and values in f32, whatever else; few queries read them where they are.
            if (sizes.q_len <= cpu::kFewQueries) continue;
            const auto least =
                static_cast<double>(sizes.batch) * sizes.kv_heads * sizes.kv_len * (8 + 8) * 4;
            CHECK(static_cast<double>(plan->workspace_bytes()) >= least);
        }
    }
    CHECK(accepted > 100);
}

TEST_CASE("products of sizes that once wrapped") {
    if (!has_cpu()) return;
    const Kernel map = compiled("mask_mod = (q_idx * kv_idx + b * h) % 3 < 2 and "
                                "(q_idx - 3 * b < kv_idx + h or kv_idx % 2 == 0)");
    // Bytes of its block mask were 2^64 and a few.
    const auto heads = map.plan({638667092, 515771281, 1, 7 * 64, 100});
    REQUIRE(!heads);
    CHECK(heads.error().message == "batch 638667092 of 515771281 heads: they must be at most "
                                   "2147483647 in all");
    CHECK(heads.error().code == ErrorCode::limit);
    const Kernel wide = compiled("score");
    CHECK(wide.plan({1 << 15, 1 << 15, 1, kLongest, 1}).error().message ==
          "1073741824 heads of 1073741823 rows of 8 elements: a tensor has at most 2^48");
    const Kernel dense =
        compiled("buffer a: f32[B, H, Q_LEN, KV_LEN]\nscore_mod = score + a[b, h, q_idx, kv_idx]");
    CHECK(dense.plan({1, 1, 1, 1 << 25, 1 << 25}).error().message ==
          "'a': a buffer of [B = 1, H = 1, Q_LEN = 33554432, KV_LEN = 33554432] has more than "
          "2^48 elements");
    PlanOptions options;
    options.q_offset = kMost - 10;
    CHECK(wide.plan({1, 2, 1, 20, 24}, {}, {}, options)
              .error()
              .message.starts_with("rows 9223372036854775797 to 9223372036854775807 of Q_LEN"));
}

TEST_CASE("a block mask that no memory holds is an error") {
    if (!has_cpu()) return;
    const Kernel map = compiled("mask_mod = q_idx * q_idx < kv_idx * 5 or kv_idx * kv_idx < q_idx");
    const auto plan = map.plan({1, 1, 1, kLongest, kLongest});
    REQUIRE(!plan);
    CHECK(plan.error().code == ErrorCode::limit);
    CHECK(map.plan({1, 1, 1, 100, 100}));
}

TEST_CASE("hostile views are refused where they are passed") {
    if (!has_cpu()) return;
    const Kernel kernel = compiled("buffer t: f32[H, N] grad\nscore_mod = score + t[h, 0]");
    std::vector<float> memory(64);
    Hostile hostile;
    for (int i = 0; i < 20000; ++i) {
        TensorView view{.data = memory.data(), .dtype = DType::f32, .rank = 2};
        if (hostile.rarely()) view.rank = static_cast<int>(hostile.number());
        for (std::size_t dim = 0; dim < kMaxDims; ++dim) {
            view.shape[dim] = dim == 0 ? 2 : hostile.number();
            view.strides[dim] = hostile.number();
        }
        const std::array buffers = {NamedTensor{"t", view}};
        const auto plan = kernel.plan({1, 2, 1, 4, 4}, buffers);
        if (plan)
            CHECK(view.shape[1] <= kMaxTensorElements / 2);
        else
            CHECK(plan.error().message.starts_with("'t'"));
    }
    const std::array good = {
        NamedTensor{"t", TensorView::contiguous(memory.data(), DType::f32, {2, 3})}};
    const auto plan = kernel.plan({1, 2, 1, 4, 4}, good);
    REQUIRE(plan);
    ForwardTensors tensors;
    tensors.q = TensorView::contiguous(memory.data(), DType::f32, {1, 2, 4, 8});
    tensors.q.strides[2] = INT64_MIN;
    auto done = kernel.forward(*plan, tensors, good, {memory.data(), plan->workspace_bytes()});
    CHECK(done.error().message.starts_with("q: the shape [1, 2, 4, 8] with strides"));
    tensors.q.rank = 1000;
    done = kernel.forward(*plan, tensors, good, {memory.data(), plan->workspace_bytes()});
    CHECK(done.error().message == "q: a rank of 1000 is not 0 to 8");
}

TEST_CASE("workspaces on a GPU do not wrap within the limits of sizes") {
    Hostile hostile;
    int checked = 0;
    while (checked < 2000) {
        AttentionArguments attention{};
        const auto next = [&] {
            return static_cast<int>(std::uint64_t(hostile.number()) % kLongest + 1);
        };
        attention.batch = next();
        attention.heads = attention.kv_heads = next();
        attention.q_len = next();
        attention.kv_len = next();
        const std::int64_t heads = std::int64_t{attention.batch} * attention.heads;
        const std::int64_t rows = std::max(attention.q_len, attention.kv_len);
        if (heads > INT32_MAX || support::product(heads, rows, 256) > kMaxTensorElements) continue;
        ++checked;
        runtime::Call call;
        call.attention = attention;
        using Of = plan::Length::Of;
        const plan::Length padded{Of::queries, 192, 128}, keys{Of::keys, 192, 128};
        const std::vector<plan::WorkspaceRegion> regions = {
            {{"delta"}, 4, {{{1, {{Of::batch}, {Of::heads}, {Of::queries}}}}}},
            {{"distance_values"},
             40,
             {{{4000, {{Of::batch}, {Of::heads}, padded}},
               {4000, {{Of::batch}, {Of::heads}, keys}}}}}};
        const runtime::PlacedWorkspace space(regions, call);
        const double least = static_cast<double>(heads) * attention.q_len * 4 +
                             static_cast<double>(heads) * rows * 4000 * 40;
        CHECK(static_cast<double>(space.bytes()) >= std::min(least, 0x1p63) * (1 - 1e-9));
    }
}

TEST_CASE("read-only views are inputs alone") {
    if (!has_cpu()) return;
    const Kernel kernel = compiled("buffer t: f32[H] grad\nscore_mod = score * t[h]");
    const Sizes sizes{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 1, .kv_len = 1};
    const std::array<float, 8> given{1, 2, 3};
    std::array<float, 8> taken{};
    const auto in = TensorView::read_only(given.data(), DType::f32, {1, 1, 1, 8});
    const auto out = TensorView::contiguous(taken.data(), DType::f32, {1, 1, 1, 8});
    const auto row = TensorView::read_only(given.data(), DType::f32, {1, 1, 1});
    const std::array buffers = {
        NamedTensor{"t", TensorView::read_only(given.data(), DType::f32, {1})}};
    auto plan = kernel.plan(sizes, buffers);
    REQUIRE(plan);
    std::vector<std::byte> memory(plan->workspace_bytes() + runtime::kAlignment);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    const Workspace workspace{memory.data() + (runtime::aligned(address) - address),
                              plan->workspace_bytes()};
    CHECK(kernel.forward(*plan, {in, in, in, out, {}}, buffers, workspace));
    CHECK(taken == given); // one key has all of the weight
    const auto refused = [](const Result<void>& done, const std::string& name) {
        REQUIRE_FALSE(done);
        CHECK(done.error().message == name + ": the call writes to it, and it was given as "
                                             "read-only");
    };
    refused(kernel.forward(*plan, {in, in, in, in, {}}, buffers, workspace), "o");
    refused(kernel.forward(*plan, {in, in, in, out, row}, buffers, workspace), "lse");

    const BackwardTensors right{.q = in,
                                .k = in,
                                .v = in,
                                .o = in,
                                .lse = row,
                                .d_out = in,
                                .d_lse = row,
                                .dq = out,
                                .dk = out,
                                .dv = out};
    const std::array gradients = {
        NamedTensor{"t", TensorView::contiguous(taken.data(), DType::f32, {1})}};
    CHECK(kernel.backward(*plan, right, buffers, gradients, workspace));
    refused(kernel.backward(*plan, right, buffers, buffers, workspace), "gradient of 't'");
    for (TensorView BackwardTensors::* one :
         {&BackwardTensors::dq, &BackwardTensors::dk, &BackwardTensors::dv}) {
        BackwardTensors wrong = right;
        wrong.*one = in;
        CHECK_FALSE(kernel.backward(*plan, wrong, buffers, gradients, workspace));
    }
}
