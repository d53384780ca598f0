// Whatever is asked for, the chosen tiles must be ones that the templates and the device can take.
#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

#include "cuda/select.h"

using namespace flexc;
using namespace flexc::cuda;

namespace {

constexpr int kArchs[] = {80, 86, 87, 89, 90, 100, 103, 120};
constexpr DType kTypes[] = {DType::f16, DType::bf16, DType::f32};

KernelRequest forward(int arch, DType dtype, int head_dim, int head_dim_v, bool score_mod) {
    KernelRequest request;
    request.arch = arch;
    request.dtype = dtype;
    request.head_dim = head_dim;
    request.head_dim_v = head_dim_v;
    request.has_score_mod = score_mod;
    return request;
}
KernelRequest generic_forward(int arch, DType dtype, int head_dim, int head_dim_v, bool score_mod) {
    KernelRequest request = forward(arch, dtype, head_dim, head_dim_v, score_mod);
    request.generic_because = "a test";
    return request;
}

int rows_per_warp(const KernelConfig& config) { return config.query_tile / config.warps; }

} // namespace

TEST_CASE("the forward kernel's tiles fit for every head dim, type and architecture") {
    for (const int arch : kArchs)
        for (const DType dtype : kTypes)
            for (int head_dim = 1; head_dim <= 256; ++head_dim)
                for (const int head_dim_v : {1, 17, 64, 129, 256, head_dim})
                    for (const bool score_mod : {false, true}) {
                        CAPTURE(arch);
                        CAPTURE(name(dtype));
                        CAPTURE(head_dim);
                        CAPTURE(head_dim_v);
                        const KernelConfig config = select_kernel(
                            generic_forward(arch, dtype, head_dim, head_dim_v, score_mod));
                        REQUIRE(config.entry == "flexc_forward");
                        REQUIRE(config.shared_bytes <= shared_memory_limit(arch));
                        REQUIRE(config.query_tile % (16 * config.warps) == 0);
                        REQUIRE(config.key_tile % 16 == 0);
                        REQUIRE(config.key_tile > 0);
                        REQUIRE(config.stages == 2);

                        // Two stages of keys and values beside the queries; then a row of floats
                        // for each query.
                        const int key = tile_row_bytes(head_dim, dtype);
                        const int value = tile_row_bytes(head_dim_v, dtype);
                        REQUIRE(config.shared_bytes >=
                                config.query_tile * key + 2 * config.key_tile * (key + value));
                        REQUIRE(config.shared_bytes >=
                                config.query_tile * tile_row_bytes(head_dim_v, DType::f32));

                        // Output and scores of a thread must leave registers for all else.
                        const int columns = (head_dim_v + 15) / 16 * 16 + config.key_tile;
                        REQUIRE(rows_per_warp(config) * columns / 32 <= 192);
                    }
}

TEST_CASE("Hopper's tiles are whole rows of a grid of keys, until that is refused") {
    for (int width = 1; width <= 256; ++width)
        for (const int head_dim : {64, 80, 128, 256}) {
            CAPTURE(width);
            CAPTURE(head_dim);
            KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
            const std::optional<KernelConfig> without = select_forward_sm90(request);
            request.key_grid = {width, true, width <= 64};
            bool left_grid = false;
            for (; const auto config = select_forward_sm90(request); ++request.refused) {
                REQUIRE(request.refused < 4);
                REQUIRE(config->shared_bytes <= shared_memory_limit(90));
                if (config->key_width == 0)
                    left_grid = true;
                else
                    REQUIRE((config->key_width == width && config->key_tile % width == 0 &&
                             config->key_tile % 16 == 0 && !left_grid));
            }
            REQUIRE(left_grid);
            if (width == 64 && head_dim <= 128) {
                request.refused = 0;
                CHECK(select_forward_sm90(request)->key_width == 64);
            }
            REQUIRE(without->key_width == 0);
        }
}

TEST_CASE(
    "Hopper's short tiles of a grid of keys are for three warpgroups, where there are no maps") {
    for (const bool has_map : {false, true})
        for (const int head_dim : {64, 80, 96}) {
            CAPTURE(has_map);
            CAPTURE(head_dim);
            KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
            request.key_grid = {64, true, true};
            request.has_map = has_map;
            const KernelConfig config = *select_forward_sm90(request);
            const ForwardSchedule& schedule = config.hopper->schedule;
            const bool is_short = !has_map && head_dim <= 80;
            CHECK(config.key_width == 64);
            CHECK(config.query_tile == (is_short ? 192 : 128));
            CHECK(schedule.key_tile == (is_short ? 64 : 128));
            CHECK(schedule.turns == Turns::products);
            CHECK(schedule.settles_after == (is_short ? 0 : 4));
        }
}

TEST_CASE("Hopper's backward sums by products where tiles are whole rows of a grid of keys") {
    for (int width = 1; width <= 128; ++width)
        for (const int head_dim : {40, 64, 80, 96, 128})
            for (const bool linear : {false, true}) {
                CAPTURE(width);
                CAPTURE(head_dim);
                KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
                request.kind = KernelKind::backward_fused;
                request.grid_reads = {width, 1, 1, true, linear, 2};
                const bool can = linear && width % 16 == 0 && 128 % width == 0;
                bool some = false;
                for (; const auto config = select_backward_sm90(request); ++request.refused) {
                    REQUIRE(request.refused < 20);
                    REQUIRE(config->key_width == width);
                    REQUIRE(config->shared_bytes <= shared_memory_limit(90));
                    some = some || config->stages_sums;
                }
                REQUIRE((some ? can : !can || head_dim == 128));
            }
}

TEST_CASE("rows in shared memory start in different banks") {
    for (const DType dtype : kTypes)
        for (int columns = 1; columns <= 256; ++columns) {
            const int bytes = tile_row_bytes(columns, dtype);
            CHECK(bytes % 32 == 16);
            CHECK(bytes >= columns * static_cast<int>(size_of(dtype)));
        }
}

TEST_CASE("common head dims share loads of keys between 32 rows") {
    for (const int head_dim : {32, 64, 80, 96, 128})
        CHECK(rows_per_warp(
                  select_kernel(generic_forward(90, DType::bf16, head_dim, head_dim, true))) == 32);
}

TEST_CASE("small shared memory gets smaller tiles") {
    const KernelRequest hopper = generic_forward(90, DType::bf16, 256, 256, false);
    const KernelRequest consumer = forward(120, DType::bf16, 256, 256, false);
    CHECK(select_kernel(consumer).shared_bytes < select_kernel(hopper).shared_bytes);
}

TEST_CASE("Hopper's kernel takes what the copy engine can, and its tiles fit") {
    for (const DType dtype : {DType::f16, DType::bf16})
        for (int head_dim = 8; head_dim <= 256; head_dim += 8)
            for (int head_dim_v = 8; head_dim_v <= 256; head_dim_v += 8) {
                CAPTURE(head_dim);
                CAPTURE(head_dim_v);
                const KernelConfig config =
                    select_kernel(forward(90, dtype, head_dim, head_dim_v, false));
                REQUIRE(config.entry == "flexc_forward_sm90");
                REQUIRE(config.hopper.has_value());
                const int consumers = config.query_tile / 64;
                REQUIRE(config.query_tile % 64 == 0);
                REQUIRE(config.warps == 4 * (consumers + 1));
                REQUIRE(config.key_tile % 16 == 0); // a step of the second product
                REQUIRE(config.key_tile <= 128);    // a mask's bits of a row fit in one register

                // Panels of 64 columns; the output leaves through the queries' memory.
                const int key = (head_dim + 63) / 64, value = (head_dim_v + 63) / 64;
                const int queries =
                    config.hopper->schedule.query_stages * config.query_tile * std::max(key, value);
                REQUIRE(config.shared_bytes ==
                        1024 + 128 * (queries + 2 * config.key_tile * (key + value)));
                REQUIRE(config.shared_bytes <= shared_memory_limit(90));
            }
}

TEST_CASE("what Hopper's kernel cannot do is left to the generic one") {
    CHECK(select_kernel(forward(80, DType::bf16, 128, 128, false)).entry == "flexc_forward");
    CHECK(select_kernel(forward(100, DType::bf16, 128, 128, false)).entry == "flexc_forward");
    CHECK(select_kernel(forward(90, DType::f32, 128, 128, false)).entry == "flexc_forward");
    CHECK(select_kernel(forward(90, DType::bf16, 100, 128, false)).entry == "flexc_forward");
    CHECK(select_kernel(forward(90, DType::bf16, 128, 100, false)).entry == "flexc_forward");
    KernelRequest reporting = forward(90, DType::bf16, 128, 128, false);
    reporting.reports_out_of_range = true;
    CHECK(select_kernel(reporting).entry == "flexc_forward");
    CHECK(select_kernel(reporting).reason.find("reads outside buffers") != std::string::npos);
    CHECK(select_kernel(forward(80, DType::bf16, 128, 128, false)).reason.find("Hopper") ==
          std::string::npos);
}

TEST_CASE("a refused configuration is followed by smaller ones, then by the generic kernel") {
    for (const int head_dim : {64, 80, 96, 128, 192, 256}) {
        CAPTURE(head_dim);
        KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
        int registers = INT32_MAX; // accumulators, of those that a thread may have
        for (int refused = 0;; ++refused) {
            REQUIRE(refused < 10);
            request.refused = refused;
            const KernelConfig config = select_kernel(request);
            if (!config.hopper) {
                CHECK(refused > 0);
                CHECK(config.entry == "flexc_forward");
                break;
            }
            const int weights = config.hopper->schedule.overlaps ? config.key_tile / 4 : 0;
            const int spare = config.query_tile == 192 ? 72 : 0; // three warpgroups have fewer
            const int now = config.key_tile / 2 + weights + head_dim / 2 + spare;
            CHECK(now < registers);
            registers = now;
        }
    }
}

TEST_CASE("tiles of a map have 128 rows, unless a schedule asks for more") {
    for (const int head_dim : {64, 80, 96, 128}) {
        CAPTURE(head_dim);
        KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
        request.has_map = true;
        const KernelConfig config = select_kernel(request);
        CHECK(config.query_tile == 128);
        const auto schedules = forward_schedules(request);
        REQUIRE(!schedules.empty());
        REQUIRE(config.hopper);
        CHECK(schedules.front() == config.hopper->schedule);
        const bool has_wider = std::ranges::any_of(
            schedules, [](const ForwardSchedule& schedule) { return schedule.consumers == 3; });
        CHECK(has_wider == (head_dim <= 96));
    }
}

TEST_CASE("a generic kernel that spilled gives way to one with fewer accumulators, at most twice") {
    // Asked for, and where there is no other.
    for (KernelRequest request : {generic_forward(80, DType::bf16, 128, 128, true),
                                  forward(80, DType::bf16, 128, 128, true)}) {
        KernelConfig before = select_kernel(request);
        for (request.refused = 1; before.has_next; ++request.refused) {
            const KernelConfig next = select_kernel(request);
            // Of scores and of the output, in a warp.
            CHECK(rows_per_warp(next) * (next.key_tile + 128) <
                  rows_per_warp(before) * (before.key_tile + 128));
            before = next;
        }
        CHECK(request.refused == 3);
    }
}

TEST_CASE("a backward that spilled works on fewer rows at a time, where that helps") {
    KernelRequest request = generic_forward(90, DType::bf16, 128, 128, true);
    request.kind = KernelKind::backward_fused;
    CHECK(select_kernel(request).has_next);
    CHECK(select_kernel(request).saves_registers == 0);
    for (request.refused = 1; request.refused < 3; ++request.refused) {
        CHECK(select_kernel(request).saves_registers == request.refused);
        CHECK(select_kernel(request).has_next);
    }
    CHECK(select_kernel(request).saves_registers == 3);
    CHECK_FALSE(select_kernel(request).has_next);
    request.head_dim = request.head_dim_v = 16;
    request.refused = 0;
    CHECK_FALSE(select_kernel(request).has_next);
}

TEST_CASE("what spills little saves registers, what spills much has smaller tiles") {
    KernelRequest request = forward(90, DType::bf16, 64, 64, true);
    request.kind = KernelKind::backward_fused;
    for (const bool has_score_mod : {false, true}) {
        request.has_score_mod = has_score_mod;
        request.refused = 0;
        const KernelConfig first = select_kernel(request);
        CHECK(first.query_tile == 128);
        CHECK(first.saving_forms == (has_score_mod ? 3 : 2));
        CHECK(first.tolerated_spills == 0);
        CHECK(first.savable_spills == 128);
        for (request.refused = 1; request.refused <= first.saving_forms; ++request.refused) {
            CHECK(select_kernel(request).query_tile == 128);
            CHECK(select_kernel(request).saves_registers == request.refused);
        }
        const KernelConfig smaller = select_kernel(request);
        CHECK(smaller.query_tile == 64);
        CHECK(smaller.saves_registers == 0);
        // The generic kernel is slower than whatever it spills.
        CHECK(smaller.savable_spills == std::numeric_limits<int>::max());
        request.refused += smaller.saving_forms;
        CHECK(select_kernel(request).saves_registers == smaller.saving_forms);
        CHECK(select_kernel(request).tolerated_spills > 0);
    }
}

TEST_CASE("Hopper's backward fits the registers and the shared memory that it has") {
    for (int head_dim = 8; head_dim <= 128; head_dim += 8)
        for (int head_dim_v = 8; head_dim_v <= 128; head_dim_v += 8) {
            CAPTURE(head_dim);
            CAPTURE(head_dim_v);
            KernelRequest request = forward(90, DType::bf16, head_dim, head_dim_v, true);
            request.kind = KernelKind::backward_fused;
            const int choices = backward_sm90_choices(request);
            REQUIRE(choices > 0);
            for (request.refused = 0; request.refused < choices; ++request.refused) {
                const KernelConfig config = select_kernel(request);
                REQUIRE(config.is_hopper_backward);
                REQUIRE(config.has_next);
                REQUIRE(config.shared_bytes <= shared_memory_limit(90));
                REQUIRE(config.query_tile + (head_dim + head_dim_v) / 2 <= 200);
            }
            const KernelConfig last = select_kernel(request);
            CHECK_FALSE(last.is_hopper_backward);
            // Nothing follows the last one whose additions have an order.
            request.deterministic = true;
            request.refused = choices - 1;
            CHECK_FALSE(select_kernel(request).has_next);
            CHECK(last.saves_registers == 0); // nobody has refused it yet
        }
}

TEST_CASE("tiles of Hopper's backward are short where the derivative needs each score") {
    for (const int head_dim : {40, 64, 128}) {
        KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
        request.kind = KernelKind::backward_fused;
        CHECK(select_kernel(request).query_tile == (head_dim <= 64 ? 128 : 64));
        request.derivative_uses_score = true;
        CHECK(select_kernel(request).query_tile == 64);
    }
}

TEST_CASE("sums of queries are gathered where all of them have memory") {
    KernelRequest request = forward(90, DType::bf16, 128, 128, true);
    request.kind = KernelKind::backward_fused;
    request.derivative_uses_score = true;
    const int without = select_kernel(request).shared_bytes;
    for (int sums = 1; sums <= 8; ++sums) {
        CAPTURE(sums);
        request.query_sums = sums;
        const KernelConfig config = select_kernel(request);
        const int bytes = sums * 4 * 8 * config.query_tile * 4 + 16; // slots, warps, floats
        const bool fits = without + bytes <= shared_memory_limit(90);
        CHECK(fits == (sums <= 3));
        CHECK(config.query_sums == (fits ? sums : 0));
        CHECK(config.shared_bytes == without + (fits ? bytes : 0));
    }
    request.query_sums = 1;
    request.head_dim = 192;
    CHECK(select_kernel(request).query_sums == 0); // keys are shared
}

TEST_CASE("Hopper's backward of wide heads shares the keys of a tile between warpgroups") {
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
        for (const int head_dim_v : {8, 64, 120, 128, 136, 192, 256}) {
            KernelRequest request = forward(90, DType::bf16, head_dim, head_dim_v, true);
            request.kind = KernelKind::backward_fused;
            request.has_map = true;
            const KernelConfig config = select_kernel(request);
            REQUIRE(config.is_hopper_backward);
            const bool is_wide = std::max(head_dim, head_dim_v) > 128;
            CHECK(config.entry == (is_wide ? "flexc_backward_wide_sm90" : "flexc_backward_sm90"));
            CHECK(config.key_tile == (is_wide ? 64 : 128));
            REQUIRE(config.shared_bytes <= shared_memory_limit(90));
        }
}

TEST_CASE("what Hopper's backward cannot do is left to the generic kernels") {
    const auto is_hopper = [](auto change) {
        KernelRequest request = forward(90, DType::bf16, 128, 128, false);
        request.kind = KernelKind::backward_fused;
        change(request);
        return select_kernel(request).is_hopper_backward;
    };
    CHECK(is_hopper([](KernelRequest&) {}));
    CHECK(is_hopper([](KernelRequest& request) { request.kind = KernelKind::delta; }));
    CHECK(is_hopper([](KernelRequest& request) { request.kind = KernelKind::convert; }));
    CHECK_FALSE(is_hopper([](KernelRequest& request) { request.kind = KernelKind::backward_dq; }));
    CHECK_FALSE(is_hopper([](KernelRequest& request) { request.arch = 100; }));
    CHECK_FALSE(is_hopper([](KernelRequest& request) { request.dtype = DType::f32; }));
    CHECK_FALSE(is_hopper([](KernelRequest& request) { request.head_dim = 100; }));
    CHECK_FALSE(is_hopper([](KernelRequest& request) { request.head_dim_v = 132; }));
    CHECK_FALSE(is_hopper([](KernelRequest& request) {
        request.head_dim_v = 136;
        request.deterministic = true;
    }));
    CHECK_FALSE(is_hopper([](KernelRequest& request) { request.generic_because = "a test"; }));
}
