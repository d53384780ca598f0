#include <vector>

#include <doctest/doctest.h>

#include "api/case.h"
#include "flexc/flexc.h"

using namespace flexc;

namespace {

constexpr std::int64_t kLength = 70;

// Runs the forward of `text` with a table of `extent` zeros, and asks whether a read left it.
Result<bool> leaves_the_table(const std::string& text, std::int64_t extent, Device device) {
    auto kernel = compile("buffer table: f32[N]\n" + text, {.dtype = DType::f32,
                                                            .head_dim = 16,
                                                            .device = device,
                                                            .backward = false,
                                                            .report_out_of_range = true});
    if (!kernel) return kernel.error();
    const std::int64_t shape[] = {1, 1, kLength, 16};
    std::vector<DeviceMemory> memory;
    const auto tensor = [&](std::span<const std::int64_t> of, std::size_t bytes) {
        auto made = DeviceMemory::allocate(device, bytes);
        REQUIRE(made);
        memory.push_back(std::move(*made));
        return TensorView::contiguous(memory.back().data(), DType::f32, of);
    };
    const ForwardTensors tensors{.q = tensor(shape, kLength * 64),
                                 .k = tensor(shape, kLength * 64),
                                 .v = tensor(shape, kLength * 64),
                                 .o = tensor(shape, kLength * 64),
                                 .lse = {}};
    const std::int64_t extents[] = {extent};
    const NamedTensor buffers[] = {
        {"table", tensor(extents, 4 * static_cast<std::size_t>(extent))}};
    auto plan = kernel->plan({.q_len = kLength, .kv_len = kLength}, buffers);
    if (!plan) return plan.error();
    auto workspace =
        DeviceMemory::allocate(device, std::max<std::size_t>(plan->workspace_bytes(), 1));
    if (!workspace) return workspace.error();
    if (auto done =
            kernel->forward(*plan, tensors, buffers, {workspace->data(), workspace->bytes()});
        !done)
        return done.error();
    auto happened = kernel->out_of_range();
    // Asking clears it.
    if (happened && *happened) CHECK_FALSE(*kernel->out_of_range());
    return happened;
}

} // namespace

TEST_CASE("a read outside its buffer is reported, unless it is hidden or not taken") {
    struct Row {
        const char* text;
        std::int64_t extent;
        bool expected;
    };
    const Row rows[] = {
        {"score_mod = score + table[kv_idx]", kLength, false},
        {"score_mod = score + table[kv_idx]", kLength - 1, true},
        {"score_mod = score + table[q_idx]", kLength - 1, true},
        {"score_mod = score + table[q_idx - kv_idx + 69]", 2 * kLength - 1, false},
        {"score_mod = score + table[q_idx - kv_idx + 69]", 2 * kLength - 2, true},
        {"score_mod = score + table[kv_idx]\nmask_mod = kv_idx < N", kLength - 1, false},
        {"score_mod = score + (table[kv_idx] if kv_idx < N else 0.0)", kLength - 1, false},
        {"mask_mod = table[kv_idx] > -1", kLength - 1, true},
        {"mask_mod = table[kv_idx] > 1", kLength - 1, true}, // although nothing is visible
    };
    for (const Device device : test::test_devices())
        for (const Row& row : rows) {
            CAPTURE(test::name(device));
            CAPTURE(row.text);
            CAPTURE(row.extent);
            const auto happened = leaves_the_table(row.text, row.extent, device);
            REQUIRE_MESSAGE(happened.has_value(),
                            (happened ? std::string() : happened.error().message));
            CHECK(*happened == row.expected);
        }
}
