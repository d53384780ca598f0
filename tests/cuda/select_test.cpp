// Whatever is asked for, the chosen tiles must be ones that the templates and the device can take.
#include <doctest/doctest.h>

#include <algorithm>

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
                        const KernelConfig config =
                            select_kernel(forward(arch, dtype, head_dim, head_dim_v, score_mod));
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
        CHECK(rows_per_warp(select_kernel(forward(90, DType::bf16, head_dim, head_dim, true))) ==
              32);
}

TEST_CASE("small shared memory gets smaller tiles") {
    const KernelRequest hopper = forward(90, DType::bf16, 256, 256, false);
    const KernelRequest consumer = forward(120, DType::bf16, 256, 256, false);
    CHECK(select_kernel(consumer).shared_bytes < select_kernel(hopper).shared_bytes);
}
