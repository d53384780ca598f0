#include <doctest/doctest.h>

#include <random>
#include <span>
#include <string>
#include <vector>

#include "analysis/call_range.h"
#include "draws.h"
#include "fresh_seed.h"
#include "ir/interp.h"
#include "program_of.h"
#include "support/text.h"

using namespace flexc;

namespace {

// The read of `t` in a program that adds t[index] to the score.
struct OneRead {
    ir::Program program;
    ir::NodeId read = ir::kNoNode;
};
OneRead read_at(const std::string& index, int dims = 1) {
    OneRead one{test::program_of("param n: int\nbuffer g: i32[KV_LEN]\nbuffer t: f32[" +
                                 std::string(dims == 1 ? "N" : "M, N") +
                                 "]\nscore_mod = score + t[" + index + "]")};
    for (const ir::NodeId id : ir::reachable(one.program.graph, std::span(&one.program.score, 1)))
        if (one.program.graph[id].op == ir::Op::read &&
            one.program.buffers[one.program.graph[id].symbol].name == "t")
            one.read = id;
    REQUIRE(one.read != ir::kNoNode);
    return one;
}

} // namespace

TEST_CASE("indices that a call says are inside are inside at each of its elements") {
    std::mt19937 random(test::fresh_seed());
    const auto below = test::draws_below(random);
    // exact: the ends of the index's range are met, so that a call without an element outside is
    // known to be one.
    const std::pair<const char*, bool> indices[] = {
        {"q_idx + KV_LEN - Q_LEN", true},
        {"q_idx + n", true},
        {"kv_idx - q_idx + N // 2", true},
        {"h // (H // H_KV)", true},
        {"h * N // H", true},
        {"clamp(kv_idx - q_idx + n, 0, 2 * n)", false},
        {"clamp(q_idx - kv_idx, -n, n) + n", false},
        {"b % 3 + h_kv", false},
        {"where(g[kv_idx] > 2, q_idx, kv_idx - 1)", false},
        {"abs(q_idx - n) // 2", false},
        {"(q_idx * 3 + kv_idx) % (n + 5)", false},
    };
    int inside = 0, outside = 0;
    for (const auto& [index, exact] : indices) {
        CAPTURE(std::string(index));
        const OneRead one = read_at(index);
        CHECK(analysis::is_known_to_calls(one.program.graph,
                                          one.program.graph[one.read].operands[0]));
        for (int call = 0; call < 60; ++call) {
            const int group = 1 + below(3), heads = group * (1 + below(3));
            const int queries = 1 + below(9), keys = 1 + below(9);
            ir::Environment at;
            at.sizes = {1 + below(3), heads, heads / group, queries, keys, 64, 64, 1 + below(14)};
            const std::int64_t n = below(8) - 2;
            at.params = {{.integer = n}};
            std::vector<std::int64_t> kinds(static_cast<std::size_t>(keys));
            for (std::int64_t& kind : kinds)
                kind = below(5);
            const ir::BufferData data[] = {{.extents = {keys}, .integers = kinds},
                                           {.extents = {at.sizes.back()}}};
            at.buffers = {&data[0], &data[1]};
            const auto positions = [](std::int64_t count) {
                return analysis::Interval{0, count - 1};
            };
            const bool is_inside = analysis::are_inside(one.program, std::span(&one.read, 1),
                                                        {.b = positions(at.sizes[0]),
                                                         .h = positions(heads),
                                                         .h_kv = positions(heads / group),
                                                         .q = positions(queries),
                                                         .kv = positions(keys),
                                                         .sizes = at.sizes,
                                                         .params = {{n, n}}});
            bool are_all = true;
            for (at.b = 0; at.b < at.sizes[0]; ++at.b)
                for (at.h = 0; at.h < heads; ++at.h)
                    for (at.q_idx = 0; at.q_idx < queries; ++at.q_idx)
                        for (at.kv_idx = 0; at.kv_idx < keys; ++at.kv_idx) {
                            at.h_kv = at.h / group;
                            const std::int64_t found = ir::evaluate_integer(
                                one.program, one.program.graph[one.read].operands[0], at);
                            are_all = are_all && found >= 0 && found < at.sizes.back();
                        }
            CHECK((!is_inside || are_all));
            if (exact) CHECK(is_inside == are_all);
            (is_inside ? inside : outside) += 1;
        }
    }
    CHECK(inside > 50);
    CHECK(outside > 50);
}

TEST_CASE("what a caller stores, scores and reals bound no index of a call") {
    for (const char* index : {"g[kv_idx]", "q_idx + g[kv_idx]", "int(score)", "int(q_idx * 0.5)",
                              "sum(i in 0..N: i)"}) {
        CAPTURE(std::string(index));
        const OneRead one = read_at(index);
        CHECK_FALSE(analysis::is_known_to_calls(one.program.graph,
                                                one.program.graph[one.read].operands[0]));
        const std::vector<std::int64_t> sizes = {1, 1, 1, 1, 1, 64, 64, 1000000};
        CHECK_FALSE(analysis::are_inside(one.program, std::span(&one.read, 1),
                                         {.b = {0, 0},
                                          .h = {0, 0},
                                          .h_kv = {0, 0},
                                          .q = {0, 0},
                                          .kv = {0, 0},
                                          .sizes = sizes,
                                          .params = {{0, 0}}}));
    }
}

TEST_CASE("an index of a call that wraps is not inside") {
    const OneRead one = read_at("(q_idx + n) * 4611686018427387904");
    const std::vector<std::int64_t> sizes = {1, 1, 1, 8, 8, 64, 64, 1000};
    const auto with = [&](std::int64_t n) {
        return analysis::are_inside(one.program, std::span(&one.read, 1),
                                    {.b = {0, 0},
                                     .h = {0, 0},
                                     .h_kv = {0, 0},
                                     .q = {0, 7},
                                     .kv = {0, 7},
                                     .sizes = sizes,
                                     .params = {{n, n}}});
    };
    CHECK_FALSE(with(0));
    CHECK_FALSE(with(4));
}
