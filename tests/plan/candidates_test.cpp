// Whatever is asked for, the chosen tiles must be ones that the templates and the device can take.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>
#include <tuple>

#include "common/sequences.h"
#include "plan/arch/sm80/sm80.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/plan.h"

using namespace flexc;
using namespace flexc::plan;

namespace {

constexpr int kArchs[] = {80, 86, 87, 89, 90, 100, 103, 120};
constexpr DType kTypes[] = {DType::f16, DType::bf16, DType::f32};

int tile_row_bytes(int columns, DType dtype) {
    return ::sm80::tile_row_bytes(columns, static_cast<int>(size_of(dtype)));
}

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

KernelConfig first(const KernelRequest& request) { return candidates(request).front(); }
// Of the family that is not generic; empty where it cannot do the request.
std::vector<KernelConfig> of_hopper(const KernelRequest& request) {
    std::vector<KernelConfig> all = candidates(request);
    std::erase_if(all, [](const KernelConfig& config) { return config.family != "sm90"; });
    return all;
}

int rows_per_warp(const KernelConfig& config) {
    return config.block.query_tile / config.block.warps;
}

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
                        const KernelConfig config =
                            first(generic_forward(arch, dtype, head_dim, head_dim_v, score_mod));
                        REQUIRE(config.entry == "flexc_forward");
                        REQUIRE(config.block.shared_bytes <= shared_memory_limit(arch));
                        REQUIRE(config.block.query_tile % (16 * config.block.warps) == 0);
                        REQUIRE(config.block.key_tile % 16 == 0);
                        REQUIRE(config.block.key_tile > 0);
                        REQUIRE(config.block.stages == 2);

                        // Two stages of keys and values beside the queries; then a row of floats
                        // for each query.
                        const int key = tile_row_bytes(head_dim, dtype);
                        const int value = tile_row_bytes(head_dim_v, dtype);
                        REQUIRE(config.block.shared_bytes >=
                                config.block.query_tile * key +
                                    2 * config.block.key_tile * (key + value));
                        REQUIRE(config.block.shared_bytes >=
                                config.block.query_tile * tile_row_bytes(head_dim_v, DType::f32));

                        // Output and scores of a thread must leave registers for all else.
                        const int columns = (head_dim_v + 15) / 16 * 16 + config.block.key_tile;
                        REQUIRE(rows_per_warp(config) * columns / 32 <= 192);
                    }
}

TEST_CASE("keys of eight bits have room as bytes, and scales of pages beside them") {
    for (const int head_dim : {33, 64, 128, 256})
        for (const bool has_entry_scales : {false, true}) {
            CAPTURE(head_dim);
            KernelRequest request = generic_forward(90, DType::bf16, head_dim, head_dim, true);
            request.kv_dtype = DType::e4m3;
            request.sequences.has_entry_scales = has_entry_scales;
            const KernelConfig config = first(request);
            const int of_key = 2 * tile_row_bytes(head_dim, DType::e4m3) + 8 * has_entry_scales;
            const int tiles = config.block.query_tile * tile_row_bytes(head_dim, DType::bf16) +
                              2 * config.block.key_tile * of_key;
            const int output = config.block.query_tile * tile_row_bytes(head_dim, DType::f32);
            CHECK(config.block.shared_bytes == std::max(tiles, output));
        }
}

TEST_CASE("Hopper's threads copy keys from pages, and rows that are no whole sectors") {
    const auto copies_keys = [](const KernelConfig& config) {
        return plan::sm90::forward_of(config)->sizes.copies_keys;
    };
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
        for (const bool has_pages : {false, true}) {
            CAPTURE(head_dim);
            CAPTURE(has_pages);
            KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
            if (has_pages) request.sequences.scattered_in = "pages";
            const std::vector<KernelConfig> all = of_hopper(request);
            REQUIRE(!all.empty());
            const bool expected =
                has_pages || (head_dim >= 104 && head_dim <= 200 && head_dim % 16 != 0);
            REQUIRE(copies_keys(all.front()) == expected);
            for (const KernelConfig& config : all) {
                REQUIRE(config.block.shared_bytes <= shared_memory_limit(90));
                if (copies_keys(config)) REQUIRE(config.schedule->consumers == 2);
                if (has_pages) REQUIRE(copies_keys(config)); // TMA does not know pages
            }
            // A kernel without them is left, where these spill.
            if (expected && !has_pages) REQUIRE(!copies_keys(all.back()));
            const auto chosen = forward_schedules(request).front();
            REQUIRE(chosen == all.front().schedule);
        }
    KernelRequest request = forward(90, DType::bf16, 104, 104, true);
    request.terms.plain.bias_bytes = 2; // other threads copy that
    CHECK(!copies_keys(first(request)));
    request = forward(90, DType::bf16, 104, 104, true);
    request.terms.plain.tabulated.distances = 1; // TMA brings these with the keys
    CHECK(!copies_keys(first(request)));
}

TEST_CASE("Hopper's tiles are whole rows of a grid of keys, until that is refused") {
    for (int width = 1; width <= 256; ++width)
        for (const int head_dim : {64, 80, 128, 256}) {
            CAPTURE(width);
            CAPTURE(head_dim);
            KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
            REQUIRE(first(request).decomposition.key_width == 0);
            request.terms.by_index_2d.keys = {width, true, width <= 64};
            bool left_index_2d = false;
            const std::vector<KernelConfig> all = of_hopper(request);
            REQUIRE(all.size() <= 5);
            for (const KernelConfig& config : all) {
                REQUIRE(config.block.shared_bytes <= shared_memory_limit(90));
                if (config.decomposition.key_width == 0)
                    left_index_2d = true;
                else
                    REQUIRE((config.decomposition.key_width == width &&
                             config.block.key_tile % width == 0 &&
                             config.block.key_tile % 16 == 0 && !left_index_2d));
            }
            REQUIRE(left_index_2d);
            if (width == 64 && head_dim <= 128) CHECK(all.front().decomposition.key_width == 64);
        }
}

TEST_CASE("Hopper's short tiles of a grid of keys are for three warpgroups, where there are no "
          "block masks") {
    for (const bool has_block_mask : {false, true})
        for (const int head_dim : {64, 80, 96}) {
            CAPTURE(has_block_mask);
            CAPTURE(head_dim);
            KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
            request.terms.by_index_2d.keys = {64, true, true};
            request.mask.has_block_mask = has_block_mask;
            const KernelConfig config = first(request);
            const ForwardSchedule& schedule = *config.schedule;
            const bool is_short = !has_block_mask && head_dim <= 80;
            CHECK(config.decomposition.key_width == 64);
            CHECK(config.block.query_tile == (is_short ? 192 : 128));
            CHECK(schedule.key_tile == (is_short ? 64 : 128));
            CHECK(schedule.ping_pong == PingPong::mma);
            CHECK(schedule.rescales_after == (is_short ? 0 : 4));
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
                request.gradients.index_2d = {width, 1, 1, true, linear, 2};
                const bool can = linear && width % 16 == 0 && 128 % width == 0;
                bool some = false;
                const std::vector<KernelConfig> all = of_hopper(request);
                REQUIRE(all.size() <= 20);
                for (const KernelConfig& config : all) {
                    REQUIRE(config.sums.key_width == width);
                    REQUIRE(config.block.shared_bytes <= shared_memory_limit(90));
                    some = some || config.storage.stages_sums;
                }
                REQUIRE((some ? can : !can || head_dim == 128));
            }
}

TEST_CASE("rows in shared memory start in different banks") {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3})
        for (int columns = 1; columns <= 256; ++columns) {
            const int bytes = tile_row_bytes(columns, dtype);
            CHECK(bytes % 32 == 16);
            CHECK(bytes >= columns * static_cast<int>(size_of(dtype)));
        }
}

TEST_CASE("common head dims share loads of keys between 32 rows") {
    for (const int head_dim : {32, 64, 80, 96, 128})
        CHECK(rows_per_warp(first(generic_forward(90, DType::bf16, head_dim, head_dim, true))) ==
              32);
}

TEST_CASE("small shared memory gets smaller tiles") {
    const KernelRequest hopper = generic_forward(90, DType::bf16, 256, 256, false);
    const KernelRequest consumer = forward(120, DType::bf16, 256, 256, false);
    CHECK(first(consumer).block.shared_bytes < first(hopper).block.shared_bytes);
}

TEST_CASE("Hopper's kernel takes what TMA can, and its tiles fit") {
    for (const DType dtype : {DType::f16, DType::bf16})
        for (int head_dim = 8; head_dim <= 256; head_dim += 8)
            for (int head_dim_v = 8; head_dim_v <= 256; head_dim_v += 8) {
                CAPTURE(head_dim);
                CAPTURE(head_dim_v);
                const KernelConfig config = first(forward(90, dtype, head_dim, head_dim_v, false));
                REQUIRE(config.entry == "flexc_forward_sm90");
                const plan::sm90::Forward* forward = plan::sm90::forward_of(config);
                REQUIRE(forward != nullptr);
                const int consumers = config.block.query_tile / 64;
                REQUIRE(config.block.query_tile % 64 == 0);
                REQUIRE(config.block.warps == 4 * (consumers + 1));
                REQUIRE(config.block.key_tile % 16 == 0); // a step of the second product
                REQUIRE(config.block.key_tile <= 128); // a mask's bits of a row fit in one register

                // Panels of 64 columns; the output leaves through the queries' memory.
                const int key = (head_dim + 63) / 64, value = (head_dim_v + 63) / 64;
                const int queries =
                    config.schedule->query_stages * config.block.query_tile * std::max(key, value);
                const int tasks = forward->sizes.copies_keys ? 2 * 48 : 0;
                REQUIRE(config.block.shared_bytes ==
                        1024 + 128 * (queries + 2 * config.block.key_tile * (key + value)) + tasks);
                REQUIRE(config.block.shared_bytes <= shared_memory_limit(90));
            }
}

TEST_CASE(
    "what Hopper's forward keeps in shared memory does not overlap, and is what it asks for") {
    const auto check = [](const KernelRequest& request) {
        int own = 0;
        for (const KernelConfig& config : of_hopper(request)) {
            ++own;
            const ::sm90::ForwardSizes& sizes = plan::sm90::forward_of(config)->sizes;
            const ::sm90::ForwardLayout layout = ::sm90::forward_layout(sizes);
            CAPTURE(config.reason);
            REQUIRE(layout.bytes == config.block.shared_bytes);
            REQUIRE(layout.bytes <= shared_memory_limit(90));
            REQUIRE(sizes.query_tile == config.block.query_tile);
            REQUIRE(sizes.key_tile == config.block.key_tile);
            REQUIRE(sizes.bias_bytes == request.terms.plain.bias_bytes);
            REQUIRE(layout.header_bytes <= layout.unit);

            const std::array rings = {layout.queries,  layout.keys,      layout.values,
                                      layout.biases,   layout.tabulated, layout.index_2d_rows,
                                      layout.key_tasks};
            int memory = 1024, barriers = sizes.query_stages * 48;
            for (const ::sm90::RingLayout& ring : rings) {
                REQUIRE(ring.memory == memory);
                REQUIRE(ring.barriers == barriers);
                memory += ring.stages * ring.bytes;
                barriers += ring.stages * 16;
                REQUIRE(ring.bytes % 16 == 0);
            }
            REQUIRE(layout.bytes == memory + (sizes.multiplies_index_2d_rows ? 1024 : 0));
            REQUIRE(layout.spare == barriers);
            // What is swizzled starts where the swizzle does.
            for (const ::sm90::RingLayout& ring : std::span(rings).first(3))
                REQUIRE((ring.memory % 1024 == 0 && ring.bytes % 1024 == 0));
            const int bias_row = sizes.key_tile * sizes.bias_bytes;
            if (bias_row % 128 == 0) REQUIRE(layout.biases.memory % 1024 == 0);
            if (bias_row > 0)
                REQUIRE(layout.biases.bytes ==
                        sizes.query_tile *
                            (bias_row % 128 == 0 ? bias_row : bias_row + 8 * sizes.bias_bytes));
        }
        REQUIRE(own > 0);
    };
    for (const DType dtype : {DType::f16, DType::bf16})
        for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
            CAPTURE(head_dim);
            const KernelRequest plain = forward(90, dtype, head_dim, head_dim, true);
            check(plain);
            for (const int bytes : {2, 4}) {
                KernelRequest biased = plain;
                biased.terms.plain.bias_bytes = bytes;
                check(biased);
            }
            for (int keys = 0; keys <= 2; ++keys)
                for (int distances = 0; distances <= 2; ++distances) {
                    KernelRequest tabulated = plain;
                    tabulated.terms.plain.tabulated.keys =
                        tabulated.terms.by_index_2d.tabulated.keys = keys;
                    tabulated.terms.plain.tabulated.distances =
                        tabulated.terms.by_index_2d.tabulated.distances = distances;
                    if (keys + distances > 0 && of_hopper(tabulated).empty()) continue;
                    check(tabulated);
                    for (const int width : {14, 16, 32, 64, 128}) {
                        tabulated.terms.by_index_2d.keys = {width, true, width <= 64};
                        tabulated.terms.by_index_2d.keys.adds_to_products = true;
                        check(tabulated);
                    }
                }
        }
}

TEST_CASE("what Hopper's kernel cannot do is left to the generic one") {
    CHECK(first(forward(80, DType::bf16, 128, 128, false)).entry == "flexc_forward");
    CHECK(first(forward(100, DType::bf16, 128, 128, false)).entry == "flexc_forward");
    CHECK(first(forward(90, DType::f32, 128, 128, false)).entry == "flexc_forward");
    CHECK(first(forward(90, DType::bf16, 100, 128, false)).entry == "flexc_forward");
    CHECK(first(forward(90, DType::bf16, 128, 100, false)).entry == "flexc_forward");
    KernelRequest reporting = forward(90, DType::bf16, 128, 128, false);
    reporting.reports_out_of_range = true;
    CHECK(first(reporting).entry == "flexc_forward");
    CHECK(first(reporting).reason.find("reads outside buffers") != std::string::npos);
    CHECK(first(forward(80, DType::bf16, 128, 128, false)).reason.find("Hopper") ==
          std::string::npos);
}

TEST_CASE("a refused configuration is followed by smaller ones, then by the generic kernel") {
    for (const int head_dim : {64, 80, 96, 128, 192, 256}) {
        CAPTURE(head_dim);
        KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
        int registers = INT32_MAX; // accumulators, of those that a thread may have
        const std::vector<KernelConfig> all = candidates(request);
        REQUIRE(all.size() < 10);
        for (std::size_t i = 0; i < all.size(); ++i) {
            const KernelConfig& config = all[i];
            if (plan::sm90::forward_of(config) == nullptr) {
                CHECK(i > 0);
                CHECK(i + 1 == all.size());
                CHECK(config.entry == "flexc_forward");
                break;
            }
            const int weights = config.schedule->overlaps ? config.block.key_tile / 4 : 0;
            const int spare =
                config.block.query_tile == 192 ? 72 : 0; // three warpgroups have fewer
            const int now = config.block.key_tile / 2 + weights + head_dim / 2 + spare;
            CHECK(now < registers);
            registers = now;
        }
    }
}

TEST_CASE("tiles of a block mask have 128 rows, unless a schedule asks for more") {
    for (const int head_dim : {64, 80, 96, 128}) {
        CAPTURE(head_dim);
        KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
        request.mask.has_block_mask = true;
        const KernelConfig config = first(request);
        CHECK(config.block.query_tile == 128);
        const auto schedules = forward_schedules(request);
        REQUIRE(!schedules.empty());
        CHECK(schedules.front() == config.schedule);
        const bool has_wider = std::ranges::any_of(
            schedules, [](const ForwardSchedule& schedule) { return schedule.consumers == 3; });
        CHECK(has_wider == (head_dim <= 96));
    }
}

TEST_CASE("rows of a block mask are a kernel's tiles, of requests that it has") {
    const KernelConfig forward{.kind = KernelKind::forward,
                               .block = {.query_tile = 64, .key_tile = 32}};
    CHECK(mask_tiling(forward, false) == MaskTiling{64, 32, false, RowsOf::all});
    CHECK(mask_tiling(forward, true) == MaskTiling{64, 32, false, RowsOf::many});
    KernelConfig few = forward, backward = forward;
    few.sequences.has_few_queries = true;
    CHECK(mask_tiling(few, true) == MaskTiling{kMostFewRows, 32, false, RowsOf::few});
    backward.kind = KernelKind::backward_fused;
    CHECK(mask_tiling(backward, true) == MaskTiling{64, 32, true, RowsOf::all});
}

TEST_CASE("few queries by a warpgroup leave room for three blocks, and other kernels have none") {
    constexpr int kMultiprocessorBytes = 228 * 1024, kReserved = 1024, kStatic = 128;
    for (const int head_dim : {64, 128})
        for (const DType dtype : {DType::f16, DType::bf16}) {
            CAPTURE(head_dim);
            const KernelRequest request = forward(90, dtype, head_dim, head_dim, true);
            const KernelConfig config = plan::sm80::few_queries_kernel(request);
            CHECK(plan::sm80::is_of_warpgroups(config));
            CHECK(3 * (config.block.shared_bytes + kStatic + kReserved) <= kMultiprocessorBytes);

            KernelRequest other = request;
            other.mask.has_block_mask = true;
            CHECK(!plan::sm80::is_of_warpgroups(plan::sm80::few_queries_kernel(other)));
            other = request;
            other.kv_dtype = DType::e4m3;
            CHECK(!plan::sm80::is_of_warpgroups(plan::sm80::few_queries_kernel(other)));
            other = request;
            other.has_own_instructions = false;
            CHECK(!plan::sm80::is_of_warpgroups(plan::sm80::few_queries_kernel(other)));
        }
    for (const auto& [arch, dtype, head_dim] : {std::tuple{80, DType::bf16, 128},
                                                {100, DType::bf16, 128},
                                                {90, DType::f32, 128},
                                                {90, DType::bf16, 96},
                                                {90, DType::bf16, 192}})
        CHECK(!plan::sm80::is_of_warpgroups(
            plan::sm80::few_queries_kernel(forward(arch, dtype, head_dim, head_dim, true))));
}

TEST_CASE("a generic kernel that spilled gives way to one with fewer accumulators, at most twice") {
    // Asked for, and where there is no other.
    for (const KernelRequest& request : {generic_forward(80, DType::bf16, 128, 128, true),
                                         forward(80, DType::bf16, 128, 128, true)}) {
        const std::vector<KernelConfig> all = candidates(request);
        CHECK(all.size() == 3);
        for (std::size_t i = 1; i < all.size(); ++i)
            // Of scores and of the output, in a warp.
            CHECK(rows_per_warp(all[i]) * (all[i].block.key_tile + 128) <
                  rows_per_warp(all[i - 1]) * (all[i - 1].block.key_tile + 128));
    }
}

TEST_CASE("a backward that spilled works on fewer rows at a time, where that helps") {
    KernelRequest request = generic_forward(90, DType::bf16, 128, 128, true);
    request.kind = KernelKind::backward_fused;
    const std::vector<KernelConfig> all = candidates(request);
    REQUIRE(all.size() == 4);
    for (std::size_t i = 0; i < all.size(); ++i)
        CHECK(all[i].form.saves_registers == static_cast<int>(i));
    // The first step would be the same kernel.
    KernelRequest varies = request, computes = request;
    varies.gradients.vary = true;
    computes.derivative.computes_columns = true;
    for (const KernelRequest& greedy : {varies, computes}) {
        CHECK(candidates(greedy).size() == 3);
        CHECK(candidates(greedy)[1].form.saves_registers == 2);
    }
    request.head_dim = request.head_dim_v = 16;
    CHECK(candidates(request).size() == 1);
    CHECK(first(request).form.saves_registers == 0);
    request.work.is_long = true;
    CHECK(candidates(request).size() == 1);
    CHECK(first(request).form.saves_registers == 2);
}

TEST_CASE("a large program with much for each element has short tiles, which may spill a little") {
    KernelRequest request = forward(90, DType::bf16, 64, 64, true);
    request.kind = KernelKind::backward_fused;
    request.work.copied_instructions = 100;
    CHECK(first(request).block.query_tile == 128);
    CHECK_FALSE(first(request).form.has_long_scores);
    request.work.is_large = true;
    CHECK(first(request).block.query_tile == 64);
    CHECK(first(request).form.has_long_scores);
    CHECK(first(request).spills.tolerated == 64);
}

TEST_CASE("short sequences have small tiles, and as many blocks as memory has room for") {
    for (const auto kind : {KernelKind::forward, KernelKind::backward_fused})
        for (const int rows : {16, 32, 64, 96, 128, 144, 160, 256}) {
            if (rows > 96 && kind == KernelKind::forward) continue;
            CAPTURE(rows);
            KernelRequest request = generic_forward(90, DType::bf16, 32, 32, true);
            request.kind = kind;
            request.sequences.most_rows = rows;
            const std::vector<KernelConfig> all = candidates(request);
            REQUIRE(!all.empty());
            int blocks = 33; // a multiprocessor has no more than 32
            for (const KernelConfig& config : all) {
                CHECK(config.sequences.is_short);
                CHECK(config.block.query_tile == rows);
                CHECK(config.block.stages * config.block.key_tile >= rows); // all keys at once
                CHECK(config.block.blocks_at_once < blocks);
                CHECK(config.block.blocks_at_once * (config.block.shared_bytes + 1024) <=
                      228 * 1024);
                CHECK(config.block.blocks_at_once * config.block.warps <= 64);
                if (config.block.blocks_at_once > 1) blocks = config.block.blocks_at_once;
            }
            CHECK(all.front().block.blocks_at_once >= (rows <= 64 ? 4 : rows <= 160 ? 2 : 1));
        }
}

TEST_CASE("many short sequences have tiles of 256 queries, and as many stages as fit") {
    for (const int rows : {256, 512})
        for (const int head_dim : {8, 32, 64, 80, 96}) {
            CAPTURE(rows);
            CAPTURE(head_dim);
            KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, false);
            const KernelConfig usual = first(request);
            request.sequences.most_rows = rows;
            const std::vector<KernelConfig> all = candidates(request);
            REQUIRE(!all.empty());
            const KernelConfig& config = all.front();
            CHECK(config.entry == usual.entry);
            CHECK(config.block.query_tile == 256);
            CHECK(config.block.warps == 20);
            CHECK(config.block.key_tile == (head_dim <= 64 ? 64 : 48));
            CHECK(config.block.stages > usual.block.stages);
            CHECK(config.block.shared_bytes <= shared_memory_limit(90));
            // What spills gives way to the usual tiles.
            CHECK(all.back().schedule ==
                  of_hopper(forward(90, DType::bf16, head_dim, head_dim, false)).back().schedule);
        }
}

TEST_CASE("short sequences with wide heads have short tiles of keys where a band hides some") {
    KernelRequest request = forward(90, DType::bf16, 128, 128, false);
    for (const bool has_band : {false, true})
        for (const int rows : {256, 512}) {
            request.mask.has_band = has_band;
            request.sequences.most_rows = rows;
            const std::vector<KernelConfig> all = candidates(request);
            REQUIRE(all.empty() == (!has_band || rows > 256));
            if (all.empty()) continue;
            CHECK(all.front().block.query_tile == 128);
            CHECK(all.front().block.key_tile == 64);
            CHECK(all.front().block.stages == 5);
        }
}

TEST_CASE("a dense bias of short sequences that has no registers left runs as usual") {
    KernelRequest request = forward(90, DType::bf16, 64, 64, true);
    request.sequences.most_rows = 256;
    request.terms.plain.bias_bytes = 2;
    CHECK(first(request).block.query_tile == 256);
    CHECK(first(request).spills.tolerated > 0);
    request.terms.plain.bias_bytes = 4;
    CHECK(candidates(request).empty());
}

TEST_CASE("sequences that do not fit in shared memory have no backward of short ones") {
    KernelRequest request = generic_forward(86, DType::f32, 32, 32, true);
    request.kind = KernelKind::backward_fused;
    request.sequences.most_rows = 256;
    CHECK(candidates(request).empty());
}

TEST_CASE("a backward of short sequences keeps a float for each element where they have values or "
          "sums in common") {
    for (const int rows : {64, 96})
        for (const bool has_value : {false, true})
            for (const bool sums : {false, true}) {
                KernelRequest request = generic_forward(90, DType::bf16, 32, 32, true);
                request.kind = KernelKind::backward_fused;
                request.sequences.most_rows = rows;
                const int without = first(request).block.shared_bytes;
                if (has_value) request.shared_value = 0;
                request.gradients.by_batch = sums;
                const KernelConfig config = first(request);
                const bool keeps_value = has_value && rows == 64;
                CHECK(config.entry == "flexc_backward_short");
                CHECK(config.block.shared_bytes ==
                      without + (keeps_value + sums) * 4 * rows * rows);
                CHECK(config.sequences.shared_value == (keeps_value ? 0 : ir::kNoNode));
            }
}

TEST_CASE("a long program keeps tiles that spill some words") {
    for (const int head_dim : {64, 128})
        for (const auto kind : {KernelKind::forward, KernelKind::backward_fused}) {
            KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
            request.kind = kind;
            // The first form of a tile of the backward may spill a few words.
            CHECK(first(request).spills.tolerated == (kind == KernelKind::forward ? 0 : 16));
            request.work.is_long = true;
            CHECK(first(request).spills.tolerated == 128);
        }
}

TEST_CASE("elements that compute much and read tables on chip have short tiles, which may spill") {
    KernelRequest request = forward(90, DType::bf16, 64, 64, true);
    request.terms.with_tables.entries = {64};
    for (const int instructions : {10, 69}) {
        CAPTURE(instructions);
        request.terms.with_tables.element_instructions = instructions;
        const KernelConfig config = first(request);
        REQUIRE(config.decomposition.stages_tables());
        CHECK((config.block.key_tile >= 112) == (instructions == 10));
        CHECK(config.spills.tolerated == (instructions == 10 ? 8 : 16));
    }
}

TEST_CASE("a forward that spills more than the next smaller tile saves passes it over") {
    const std::vector<KernelConfig> all = of_hopper(forward(90, DType::bf16, 128, 128, true));
    REQUIRE(all.size() == 3);
    CHECK(all[0].block.key_tile - all[1].block.key_tile == 16);
    CHECK(all[0].spills.saving_forms == 1);
    CHECK(all[0].spills.savable == 256);
    CHECK(all[1].block.key_tile - all[2].block.key_tile > 16);
    CHECK(all[1].spills.saving_forms == 0);
}

TEST_CASE("what spills little saves registers, what spills much has smaller tiles") {
    KernelRequest request = forward(90, DType::bf16, 64, 64, true);
    request.kind = KernelKind::backward_fused;
    request.derivative.computes_rows = true;
    for (const bool has_score_mod : {false, true}) {
        request.has_score_mod = has_score_mod;
        const std::vector<KernelConfig> all = of_hopper(request);
        const KernelConfig& one = all.front();
        CHECK(one.block.query_tile == 128);
        const std::vector<int> forms = has_score_mod ? std::vector{0, 1, 2, 3} : std::vector{0, 2};
        CHECK(one.spills.saving_forms == static_cast<int>(forms.size()) - 1);
        CHECK(one.spills.savable == 128);
        REQUIRE(all.size() == 2 * forms.size());
        for (std::size_t i = 0; i < forms.size(); ++i) {
            CHECK(all[i].block.query_tile == 128);
            CHECK(all[i].form.saves_registers == forms[i]);
            if (i + 1 < forms.size()) CHECK(all[i].spills.tolerated == (i == 0 ? 16 : 0));
        }
        const KernelConfig& smaller = all[forms.size()];
        CHECK(smaller.block.query_tile == 64);
        CHECK(smaller.form.saves_registers == 0);
        CHECK(smaller.spills.tolerated == 16);
        // The generic kernel is slower than whatever it spills.
        CHECK(smaller.spills.savable == std::numeric_limits<int>::max());
        CHECK(all.back().form.saves_registers == forms.back());
        CHECK(all.back().spills.tolerated > 0);
    }
}

TEST_CASE("a mask that computes much for a query saves registers of the warps that do it") {
    for (const int head_dim : {64, 128}) {
        KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
        request.kind = KernelKind::backward_fused;
        request.has_score_mod = false;
        request.mask.has_block_mask = request.derivative.computes_rows = true;
        const std::vector<std::pair<int, std::vector<int>>> forms = {
            {100, {0, 2}}, {240, {0, 1, 2}}, {480, {1, 2}}};
        for (const auto& [instructions, expected] : forms) {
            CAPTURE(instructions);
            request.work.row_instructions = instructions;
            const std::vector<KernelConfig> all = of_hopper(request);
            REQUIRE(all.size() % expected.size() == 0);
            for (std::size_t i = 0; i < all.size(); ++i) {
                CHECK(all[i].form.saves_registers == expected[i % expected.size()]);
                if (i % expected.size() == 0) CHECK(all[i].spills.tolerated == 16);
            }
        }
    }
}

TEST_CASE("a backward with loops over terms may spill, begins with a form that saves registers "
          "beside wide heads, and has no other form where products are serialised") {
    KernelRequest request = forward(90, DType::bf16, 128, 128, true);
    request.kind = KernelKind::backward_fused;
    CHECK_FALSE(first(request).spills.serialise_alike);
    request.sums = {.count = 1, .carried = 1};
    const std::vector<KernelConfig> all = of_hopper(request);
    for (const KernelConfig& config : all) {
        CHECK(config.spills.serialise_alike);
        // Elements with loops of their own would take longer than what spills.
        CHECK(config.sum_elements != 0);
        CHECK(config.spills.tolerated == (&config == &all.back() ? 640 : 256));
    }
    CHECK(all.front().form.saves_registers == 2);
    request.work.is_large = request.work.is_long = true;
    for (const KernelConfig& config : of_hopper(request))
        CHECK(config.spills.tolerated == 640);
    request.work = {};
    request.derivative.uses_score = true; // folded into P
    CHECK(first(request).form.saves_registers == 0);
    request.derivative.uses_score = false;
    request.bias.bytes = 2;
    CHECK(first(request).form.saves_registers == 0);
    request = forward(90, DType::bf16, 64, 64, true);
    request.kind = KernelKind::backward_fused;
    request.sums = {.count = 1, .carried = 1};
    CHECK(first(request).sum_elements != 0);
    CHECK(first(request).form.saves_registers == 0);
}

TEST_CASE("the first form with a dense bias, or with sums one by one, may spill nothing") {
    KernelRequest request = forward(90, DType::bf16, 128, 128, true);
    request.kind = KernelKind::backward_fused;
    CHECK(first(request).spills.tolerated == 16);
    request.bias.bytes = 2;
    CHECK(first(request).spills.tolerated == 0);
    request.bias.bytes = 0;
    request.gradients.by_element = true;
    CHECK(first(request).spills.tolerated == 0);
}

TEST_CASE("a derivative that is folded into P subtracts references apart before it gives way") {
    KernelRequest request = forward(90, DType::bf16, 128, 128, true);
    request.kind = KernelKind::backward_fused;
    request.has_score_mod = request.derivative.uses_score = request.gradients.any = true;
    const auto forms = [&] {
        std::vector<int> of_all;
        for (const KernelConfig& config : of_hopper(request)) {
            of_all.push_back(config.form.saves_registers);
            CHECK(config.spills.saving_forms ==
                  static_cast<int>(of_hopper(request).size() - of_all.size()));
        }
        return of_all;
    };
    CHECK(forms() == std::vector{0, 1, 2, 3}); // beside gradients of buffers
    request.work.takes_roots = true; // for which there is a branch for each pair of queries
    CHECK(forms() == std::vector{0, 1, 2, 3, 5});
    request.work.takes_roots = false;
    request.gradients.any = false;
    CHECK(forms() == std::vector{0, 2, 3, 4});
    request.mask.has_window = true;
    CHECK(forms() == std::vector{0, 2, 4});
    const KernelConfig last = of_hopper(request).back();
    CHECK(last.block.is_persistent);
    CHECK(last.spills.tolerated > 0);
    CHECK(last.reason.find("references") != std::string::npos);
    CHECK(last.reason.find("larger tiles") == std::string::npos);
}

TEST_CASE("derivatives by 64-bit integers begin with what their heads' widths leave room for") {
    KernelRequest request = forward(90, DType::bf16, 128, 128, true);
    request.kind = KernelKind::backward_fused;
    request.gradients.any = request.derivative.computes_rows = true;
    const auto first_form = [&](int head_dim) {
        request.head_dim = request.head_dim_v = head_dim;
        return std::pair(first(request).block.query_tile, first(request).form.saves_registers);
    };
    CHECK(first_form(64) == std::pair(128, 0));
    CHECK(first_form(128) == std::pair(64, 0));
    request.gradients.partials_are_wide = true;
    CHECK(first_form(64) == std::pair(64, 0));
    CHECK(first_form(112) == std::pair(64, 0));
    CHECK(first_form(128) == std::pair(64, 3));
    request.work.takes_roots = true;
    CHECK(first_form(128) == std::pair(64, 5));
    CHECK(of_hopper(request).size() == 1);
    CHECK(first(request).spills.tolerated > 0); // the generic kernel, which follows, is slower
}

TEST_CASE("only warps that do more than load save registers by themselves") {
    KernelRequest loads = forward(90, DType::bf16, 128, 128, true);
    loads.kind = KernelKind::backward_fused;
    const auto saves_beside = [](const KernelRequest& request) {
        const std::vector<KernelConfig> all = of_hopper(request);
        // What spills more than such warps do passes this form over, and no other one.
        CHECK((all[0].spills.beside < 64) == (all[1].form.saves_registers == 1));
        CHECK(all[static_cast<std::size_t>(all[0].spills.saving_forms)].form.saves_registers >= 3);
        return all[1].form.saves_registers == 1;
    };
    CHECK_FALSE(saves_beside(loads));
    KernelRequest folds = loads;
    folds.derivative.uses_score = true;
    CHECK_FALSE(saves_beside(folds));
    KernelRequest rows = loads, partials = loads, derivatives = loads, biases = loads;
    rows.derivative.computes_rows = true;
    partials.gradients.partials_use_score = true;
    derivatives.derivative.uses_score = derivatives.gradients.any = true;
    biases.bias.bytes = 2;
    for (const KernelRequest& request : {rows, partials, derivatives, biases})
        CHECK(saves_beside(request));
}

TEST_CASE("Hopper's backward fits the registers and the shared memory that it has") {
    for (int head_dim = 8; head_dim <= 128; head_dim += 8)
        for (int head_dim_v = 8; head_dim_v <= 128; head_dim_v += 8) {
            CAPTURE(head_dim);
            CAPTURE(head_dim_v);
            KernelRequest request = forward(90, DType::bf16, head_dim, head_dim_v, true);
            request.kind = KernelKind::backward_fused;
            const std::vector<KernelConfig> all = candidates(request), hopper = of_hopper(request);
            REQUIRE(!hopper.empty());
            for (const KernelConfig& config : hopper) {
                REQUIRE(config.block.shared_bytes <= shared_memory_limit(90));
                REQUIRE(config.block.query_tile + (head_dim + head_dim_v) / 2 <= 200);
            }
            REQUIRE(all.size() > hopper.size());
            CHECK(all[hopper.size()].family == "sm80");
            CHECK(all[hopper.size()].form.saves_registers == 0); // nobody has refused it yet
            // Nothing follows the last one whose additions have an order.
            request.deterministic = true;
            CHECK(candidates(request).size() == hopper.size());
        }
}

TEST_CASE("tiles of Hopper's backward are short where the derivative is multiplied into P") {
    for (const int head_dim : {40, 64, 128}) {
        KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
        request.kind = KernelKind::backward_fused;
        CHECK(first(request).block.query_tile == (head_dim <= 64 ? 128 : 64));
        request.derivative.is_costly = true; // would spill in tiles of 128
        REQUIRE(request.folds_derivative());
        for (const KernelConfig& config : of_hopper(request))
            CHECK(config.block.query_tile == 64);
        request.derivative = {.uses_score = true};
        CHECK(first(request).block.query_tile == 64);
    }
}

TEST_CASE("sums of queries are gathered where all of them have memory") {
    KernelRequest request = forward(90, DType::bf16, 128, 128, true);
    request.kind = KernelKind::backward_fused;
    request.derivative.uses_score = true;
    const int without = first(request).block.shared_bytes;
    for (int sums = 1; sums <= 8; ++sums) {
        CAPTURE(sums);
        request.gradients.by_query = sums;
        const KernelConfig config = first(request);
        const int bytes = sums * 4 * 8 * config.block.query_tile * 4 + 16; // slots, warps, floats
        const bool fits = without + bytes <= shared_memory_limit(90);
        CHECK(fits == (sums <= 3));
        CHECK(config.storage.query_sums == (fits ? sums : 0));
        CHECK(config.block.shared_bytes == without + (fits ? bytes : 0));
    }
    request.gradients.by_query = 1;
    request.head_dim = 192;
    CHECK(first(request).storage.query_sums == 0); // keys are shared
}

TEST_CASE("Hopper's backward of wide heads shares the keys of a tile between warpgroups") {
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
        for (const int head_dim_v : {8, 64, 120, 128, 136, 192, 256}) {
            KernelRequest request = forward(90, DType::bf16, head_dim, head_dim_v, true);
            request.kind = KernelKind::backward_fused;
            request.mask.has_block_mask = true;
            const KernelConfig config = first(request);
            REQUIRE(config.family == "sm90");
            const bool is_wide = std::max(head_dim, head_dim_v) > 128;
            CHECK(config.entry == (is_wide ? "flexc_backward_wide_sm90" : "flexc_backward_sm90"));
            CHECK(config.block.key_tile == (is_wide ? 64 : 128));
            REQUIRE(config.block.shared_bytes <= shared_memory_limit(90));
        }
}

TEST_CASE("a backward with gradients of terms has its first form, whatever it spills") {
    for (const int head_dim : {64, 128, 256}) {
        CAPTURE(head_dim);
        KernelRequest request = forward(90, DType::bf16, head_dim, head_dim, true);
        request.kind = KernelKind::backward_fused;
        request.gradients.by_terms = true;
        REQUIRE(first(request).family == "sm90");
        CHECK(first(request).spills.tolerated == std::numeric_limits<int>::max());
    }
}

TEST_CASE("what Hopper's backward cannot do is left to the generic kernels") {
    const auto is_hopper = [](auto change) {
        KernelRequest request = forward(90, DType::bf16, 128, 128, false);
        request.kind = KernelKind::backward_fused;
        change(request);
        return !is_generic(first(request));
    };
    CHECK(is_hopper([](KernelRequest&) {}));
    CHECK_FALSE(
        is_hopper([](KernelRequest& request) { request.kind = KernelKind::backward_dkdv; }));
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

TEST_CASE("where the fastest sums of tables spill, slower ones follow") {
    // The ways to sum in the order in which they are tried, each with the number of its forms.
    const auto ways = [](const BufferGradients& gradients, int head_dim, bool is_large = false) {
        std::string text, last;
        int forms = 0;
        const KernelRequest request = {.kind = KernelKind::backward_fused,
                                       .arch = 90,
                                       .head_dim = head_dim,
                                       .head_dim_v = head_dim,
                                       .has_score_mod = true,
                                       .work = {.is_large = is_large},
                                       .gradients = gradients};
        for (const KernelConfig& config : plan::candidates(request)) {
            if (config.family != plan::sm90::kName) continue;
            const bool multiplies = config.storage.kind_words > 0;
            const std::string way = multiplies && config.sums.adds_biases_beside ? "both"
                                    : multiplies                                 ? "products"
                                    : config.sums.weighs_distances               ? "diagonals"
                                    : config.sums.adds_biases_beside             ? "biases"
                                    : config.storage.entries > 0                 ? "copies"
                                    : config.sums.sums_tables                    ? "entries"
                                                                                 : "elements";
            forms = way == last ? forms + 1 : 1;
            last = way;
            if (config.spills.saving_forms == 0) text += way + " " + std::to_string(forms) + " ";
        }
        return text;
    };
    BufferGradients tables{.any = true, .vary = true, .by_table = true};
    for (const int head_dim : {64, 128}) {
        CAPTURE(head_dim);
        const bool is_narrow = head_dim == 64;
        CHECK(ways(tables, head_dim) == "entries 3 ");
        BufferGradients several = tables;
        several.sums_kinds_beside = true;
        CHECK(ways(several, head_dim) == "products 2 entries 3 ");
        CHECK(ways(several, head_dim, true) == "entries 3 ");
        BufferGradients biases = tables;
        biases.adds_biases_beside = true;
        CHECK(ways(biases, head_dim) == "biases 2 entries 3 ");
        BufferGradients weighted = tables;
        weighted.weighs_tables = true;
        CHECK(ways(weighted, head_dim) == "entries 2 elements 3 ");
        CHECK(ways(weighted, head_dim, true) == "elements 3 ");
        const BufferGradients distances{.any = true, .vary = true, .weighs_distances = true};
        CHECK(ways(distances, head_dim) == "diagonals 2 elements 3 ");
        CHECK(ways(distances, head_dim, true) == "elements 3 ");
        // Wide heads leave registers for one of them.
        several.adds_biases_beside = true;
        CHECK(ways(several, head_dim) == (is_narrow ? "both 2 entries 3 " : "biases 2 entries 3 "));
        weighted.sums_kinds_beside = true;
        CHECK(ways(weighted, head_dim) ==
              (is_narrow ? "products 2 elements 3 " : "entries 2 elements 3 "));
        BufferGradients of_elements = tables;
        of_elements.entries_of_elements = {.known = 700};
        CHECK(ways(of_elements, head_dim) == "copies 1 entries 3 ");
        CHECK(ways(of_elements, head_dim, true) == "entries 3 ");
        of_elements.sums_kinds_beside = true;
        CHECK(ways(of_elements, head_dim) == "copies 1 products 2 entries 3 ");
        of_elements.entries_of_elements = {.known = 16000};
        CHECK(ways(of_elements, head_dim) ==
              (is_narrow ? "copies 1 products 2 entries 3 " : "products 2 entries 3 "));
        of_elements.has_sums_beside_entries = true;
        CHECK(ways(of_elements, head_dim) == "products 2 entries 3 ");
        // A kernel for them alone has room for more, and registers for them.
        of_elements.are_alone = true;
        CHECK(ways(of_elements, head_dim) == "copies 3 ");
        of_elements.entries_of_elements = {.known = 60000};
        CHECK(ways(of_elements, head_dim) == "products 2 entries 3 ");
    }
}

TEST_CASE("lanes have copies of few entries of their own") {
    const auto copies = [](int entries, int head_dim) {
        const KernelConfig config =
            plan::candidates({.kind = KernelKind::backward_fused,
                              .arch = 90,
                              .head_dim = head_dim,
                              .head_dim_v = head_dim,
                              .has_score_mod = true,
                              .gradients = {.any = true,
                                            .vary = true,
                                            .by_table = true,
                                            .entries_of_elements = {.known = entries}}})[0];
        return config.storage.entries == entries ? 1 << config.storage.entry_copy_shift : 0;
    };
    CHECK(copies(20, 64) == 32);
    CHECK(copies(20, 128) == 32);
    CHECK(copies(732, 64) == 32);
    CHECK(copies(732, 128) == 8);
    CHECK(copies(16132, 64) == 1);
    CHECK(copies(16132, 128) == 0);
    CHECK(copies(20, 192) == 0);
}

TEST_CASE("warps of a generic backward keep sums of terms where there is room") {
    const auto words = [](int arch, int head_dim, passes::TermReads reads) {
        const KernelConfig config = plan::candidates({.kind = KernelKind::backward_fused,
                                                      .arch = arch,
                                                      .head_dim = head_dim,
                                                      .head_dim_v = head_dim,
                                                      .has_score_mod = true,
                                                      .gradients = {.generic_term_reads = reads},
                                                      .generic_because = "this test is of it"})[0];
        CHECK(config.block.shared_bytes <= plan::shared_memory_limit(arch));
        return config.storage.term_words;
    };
    for (const int arch : {80, 86, 90})
        for (const int head_dim : {16, 64, 128, 256}) {
            CAPTURE(arch);
            CAPTURE(head_dim);
            CHECK(words(arch, head_dim, {}) == 0);
            CHECK(words(arch, head_dim, {.of_heads = 48}) == 48);
            CHECK(words(arch, head_dim, {.of_keys = 1000}) == 0);
        }
    CHECK(words(80, 64, {.of_heads = 3, .of_keys = 16}) == 3 + 16 * 32);
}

TEST_CASE("a generic backward has room for sums of few entries beside its tile") {
    const auto generic = [](int arch, int head_dim, int few_entries) {
        return plan::candidates({.kind = KernelKind::backward_fused,
                                 .arch = arch,
                                 .head_dim = head_dim,
                                 .head_dim_v = head_dim,
                                 .has_score_mod = true,
                                 .gradients = {.few_entries = few_entries},
                                 .generic_because = "this test is of it"})[0];
    };
    CHECK(generic(80, 64, 0).storage.table_words == 0);
    CHECK(generic(80, 64, 1).storage.table_words == 4096);
    CHECK(generic(86, 64, 1).storage.table_words == 1024);
    CHECK(generic(86, 128, 1).storage.table_words == 1024);
    for (const int arch : {80, 86, 90})
        for (const int head_dim : {16, 64, 80, 128, 192})
            for (const int few_entries : {1, 2, 5}) {
                const KernelConfig config = generic(arch, head_dim, few_entries);
                CAPTURE(arch);
                CAPTURE(head_dim);
                CAPTURE(few_entries);
                CHECK(config.storage.table_words >= 256);
                CHECK(config.block.shared_bytes <= plan::shared_memory_limit(arch));
                CHECK(config.block.shared_bytes - generic(arch, head_dim, 0).block.shared_bytes <=
                      few_entries * 8 * config.storage.table_words + 8 * 4 * (1 + 2 * few_entries));
            }
}
