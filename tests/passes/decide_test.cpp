#include <doctest/doctest.h>

#include <array>

#include "passes/decide.h"
#include "passes/describe.h"
#include "program_of.h"
#include "random_program.h"

using namespace flexc;

namespace {

std::string mask_of(const std::string& mask) {
    const passes::Mod mod = test::lowered("param n: int = 3\nmask_mod = " + mask);
    return passes::formula(mod.program, mod.mask);
}

} // namespace

TEST_CASE("comparisons that ranges settle") {
    CHECK(mask_of("kv_idx < KV_LEN") == "true");
    CHECK(mask_of("kv_idx >= 0 and q_idx < Q_LEN") == "true");
    CHECK(mask_of("kv_idx == KV_LEN") == "false");
    CHECK(mask_of("KV_LEN - kv_idx != 0") == "true");
    CHECK(mask_of("h_kv < H") == "true");
    CHECK(mask_of("H_KV <= H") == "true");
    CHECK(mask_of("kv_idx % 4 < 4") == "true");
    CHECK(mask_of("max(kv_idx, 0) <= n") == "kv_idx <= n");
    CHECK(mask_of("min(kv_idx, KV_LEN) <= n") == "kv_idx <= n");
    CHECK(mask_of("abs(kv_idx) <= n") == "kv_idx <= n");
    CHECK(mask_of("kv_idx % 4 % 8 == n") == "(kv_idx % 4) == n");
}

TEST_CASE("the larger less the smaller, where the difference does not overflow") {
    CHECK(mask_of("max(q_idx, kv_idx) - min(q_idx, kv_idx) <= n") == "abs(q_idx - kv_idx) <= n");
    CHECK(mask_of("max(kv_idx, q_idx) - min(q_idx, kv_idx) <= n") == "abs(kv_idx - q_idx) <= n");
    CHECK(mask_of("max(q_idx + 2, 5 * kv_idx) - min(q_idx + 2, 5 * kv_idx) <= n") ==
          "abs((q_idx + 2) - (kv_idx * 5)) <= n");
    // One is always the larger.
    CHECK(mask_of("max(kv_idx, KV_LEN) - min(kv_idx, KV_LEN) <= n") == "(KV_LEN - kv_idx) <= n");
    // Others, and what may overflow: 2^63 - 1 and -2 differ by a number that wraps to one below 0.
    CHECK(mask_of("min(q_idx, kv_idx) - max(q_idx, kv_idx) <= n") ==
          "(min(q_idx, kv_idx) - max(q_idx, kv_idx)) <= n");
    CHECK(mask_of("max(q_idx, kv_idx) - min(q_idx, h) <= n") ==
          "(max(q_idx, kv_idx) - min(q_idx, h)) <= n");
    const std::string wide = "max(kv_idx, q_idx << 62) - min(kv_idx, q_idx << 62)";
    CHECK(mask_of(wide + " <= n").find("abs") == std::string::npos);
}

TEST_CASE("comparisons that they do not") {
    CHECK(mask_of("kv_idx < Q_LEN") == "kv_idx < Q_LEN");
    CHECK(mask_of("kv_idx < KV_LEN - 1") == "kv_idx < (KV_LEN - 1)");
    CHECK(mask_of("kv_idx > 0") == "0 < kv_idx");
    CHECK(mask_of("H_KV < H") == "H_KV < H");
}

TEST_CASE("deciding keeps values") {
    for (const std::uint64_t seed : test::seeds(600)) {
        CAPTURE(seed);
        const ir::Program before = test::random_program(seed, {.operators = 60});
        ir::Program after = before;
        const std::array roots = {&after.score, &after.mask, &after.sink};
        passes::decide(after, roots);
        test::Instance instance(before, seed);
        for (int point = 0; point < 10; ++point, instance.move()) {
            const ir::Environment& environment = instance.environment();
            REQUIRE(ir::evaluate_real(before, before.score, environment) ==
                    ir::evaluate_real(after, after.score, environment));
            REQUIRE(ir::evaluate_boolean(before, before.mask, environment) ==
                    ir::evaluate_boolean(after, after.mask, environment));
        }
    }
}
