// Which dense biases TMA may load as matrices: boxes have to begin at 16 aligned bytes.
#include "runtime/dense_bias_rows.h"

#include <cstdint>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

using namespace flexc;

namespace {

// A buffer [H, Q_LEN, KV_LEN] of 16-bit elements, of four heads and 100 queries.
std::optional<cuda::BiasLayout> rows_of(std::int64_t head_step, std::int64_t row_step,
                                        std::int64_t kv_len, std::int64_t kv_offset) {
    const std::vector<std::uint64_t> words = {0x1000,
                                              4,
                                              100,
                                              static_cast<std::uint64_t>(kv_len),
                                              static_cast<std::uint64_t>(head_step),
                                              static_cast<std::uint64_t>(row_step),
                                              1};
    const plan::CopiedBias bias{.data = 0,
                                .extents = {1, 2, 3},
                                .strides = {4, 5, 6},
                                .by_query = {false, true, false},
                                .element_bytes = 2};
    runtime::Call call;
    call.words = words;
    call.attention.kv_offset = static_cast<int>(kv_offset);
    return runtime::rows_of(bias, call);
}

} // namespace

TEST_CASE("a dense bias is a matrix of the rows of all heads") {
    const auto rows = rows_of(100 * 64, 64, 64, 0);
    REQUIRE(rows.has_value());
    CHECK(rows->rows == 400);
    CHECK(rows->columns == 64);
    CHECK(rows->row_step == 64);
}

TEST_CASE("boxes of a dense bias begin at aligned bytes") {
    for (const std::int64_t offset : {8, 16, 40})
        CHECK(rows_of(100 * 64, 64, 64, offset).has_value());
    for (const std::int64_t offset : {1, 4, 12, 39})
        CHECK_FALSE(rows_of(100 * 64, 64, 64, offset).has_value());
    // Heads side by side in a row.
    CHECK(rows_of(24, 4 * 24, 24, 0).has_value());
    CHECK_FALSE(rows_of(20, 4 * 20, 20, 0).has_value());
}
