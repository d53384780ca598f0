#include <doctest/doctest.h>

#include "analysis/dependence.h"
#include "program_of.h"

using namespace flexc;

TEST_CASE("a value uses what its operands and indices use") {
    auto used = [](const std::string& text) {
        const ir::Program program = test::program_of(
            "buffer slopes: f32[H]\nbuffer doc: i32[KV_LEN]\nparam cap: f32 = 2\nscore_mod = " +
            text);
        return analysis::describe(analysis::dependences(program.graph)[program.score]);
    };
    CHECK(used("score") == "score");
    CHECK(used("cap * 2") == "nothing");
    CHECK(used("cap * Q_LEN") == "nothing");
    CHECK(used("slopes[h] * b") == "b, h");
    CHECK(used("h_kv * 1.0") == "h");
    CHECK(used("slopes[doc[q_idx]]") == "q_idx");
    CHECK(used("slopes[h] * (kv_idx - q_idx) + score") == "score, h, q_idx, kv_idx");
    CHECK(used("cap if doc[kv_idx] > b else 1.0") == "b, kv_idx");
}
