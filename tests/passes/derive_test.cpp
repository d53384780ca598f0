#include <algorithm>
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <set>
#include <string>

#include "front/compile_text.h"
#include "ir/print.h"
#include "passes/derive.h"
#include "passes/pipeline.h"
#include "random_program.h"

using namespace flexc;
using ir::NodeId;
using ir::Op;

namespace {

bool all_finite(const ir::Program& program, std::span<const NodeId> roots,
                const ir::Environment& environment) {
    const auto values = ir::evaluate<double>(program, roots, environment);
    for (NodeId id : ir::reachable(program.graph, roots))
        if (program.graph[id].type == ir::Type::real && !(std::fabs(values[id].real) < 1e30))
            return false;
    return true;
}

// A leaf in the term of a sum is one for each value of the counter. False where there is none.
bool choose_term(const ir::Program& program, NodeId counter, int point,
                 ir::Environment& environment) {
    if (counter == ir::kNoNode) return true;
    const auto& range = program.graph[counter].operands;
    const std::int64_t first = ir::evaluate_integer(program, range[0], environment);
    const std::int64_t count = ir::evaluate_integer(program, range[1], environment) - first;
    if (count <= 0) return false;
    environment.counter = first + point % count;
    return true;
}

std::vector<NodeId> leaves_of(const ir::Program& program, NodeId root) {
    std::vector<NodeId> leaves;
    for (NodeId id : ir::reachable(program.graph, std::span(&root, 1))) {
        const ir::Node& node = program.graph[id];
        if (node.op == Op::score || (node.op == Op::read && program.buffers[node.symbol].grad))
            leaves.push_back(id);
    }
    return leaves;
}

// Slopes of the root against those of dual numbers; how many there were.
int compare(const ir::Program& program, NodeId root, std::span<const NodeId> leaves,
            std::span<const NodeId> slopes, ir::Environment& environment, int point) {
    const std::vector<NodeId> counters = ir::counters_of(program.graph);
    int compared = 0;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
        const std::array roots = {root, slopes[i] == ir::kNoNode ? root : slopes[i]};
        if (!choose_term(program, counters[leaves[i]], point, environment)) continue;
        if (!all_finite(program, roots, environment)) continue;
        const double expected = ir::evaluate_slope(program, root, environment, leaves[i]);
        const double actual =
            slopes[i] == ir::kNoNode ? 0 : ir::evaluate_real(program, slopes[i], environment);
        CAPTURE(ir::print(program));
        REQUIRE(std::fabs(actual - expected) <=
                1e-5 * (1 + std::fabs(expected) + std::fabs(actual)));
        ++compared;
    }
    return compared;
}

} // namespace

TEST_CASE("derivatives of random expressions are those of dual numbers") {
    std::set<Op> derived; // operators that some derivative went through
    int compared = 0;
    for (const std::uint64_t seed : test::seeds(1500)) {
        CAPTURE(seed);
        ir::Program program = test::random_program(seed);
        const ir::NodeId before = program.graph.size();
        const std::vector<NodeId> leaves = leaves_of(program, program.score);
        const auto slopes = passes::derive(program.graph, program.score, leaves);
        REQUIRE(slopes);
        REQUIRE(slopes->size() == leaves.size());
        test::Instance instance(program, seed);
        for (int point = 0; point < 8; ++point, instance.move())
            compared +=
                compare(program, program.score, leaves, *slopes, instance.environment(), point);
        for (NodeId id = 0; id < before; ++id)
            derived.insert(program.graph[id].op);
    }
    CHECK(compared > 6 * test::trials(1500));
    for (std::size_t op = 0; op < ir::all_operators().size(); ++op) {
        CAPTURE(ir::all_operators()[op].name);
        // Random programs are dense; the next test has the leaves of others.
        constexpr std::array kOthers = {Op::const_bool, Op::q_row, Op::kv_row, Op::q_len,
                                        Op::kv_len};
        if (std::ranges::find(kOthers, static_cast<Op>(op)) == kOthers.end())
            CHECK(derived.contains(static_cast<Op>(op)));
    }
}

TEST_CASE("derivatives with rows and lengths of requests are those of dual numbers") {
    const std::string buffer = "buffer t: f32[N] grad\n";
    const std::string texts[] = {
        "score_mod = score * Q_LEN / (1 + KV_LEN) + tanh(score) * (q_row - kv_row)",
        buffer + "score_mod = score * t[q_row] + t[kv_row] * t[q_row] * KV_LEN",
        buffer + "score_mod = exp(t[kv_row - q_row] * 0.1) * score\nsink = t[q_row] * Q_LEN",
        buffer + "score_mod = where(q_row < kv_row, score * t[Q_LEN], score * score * t[KV_LEN])\n"
                 "sink = tanh(t[q_row] * t[h]) / KV_LEN + t[Q_LEN - 1 - q_idx]",
    };
    std::set<Op> derived;
    test::Random random(5);
    for (const Layout keys : {Layout::ragged, Layout::paged})
        for (const std::string& text : texts) {
            CAPTURE(text);
            front::Output output = front::compile_text({.source = dsl::Source("<test>", text),
                                                        .query_layout = Layout::ragged,
                                                        .key_layout = keys});
            REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
            ir::Program& program = *output.program;
            for (const NodeId root : {program.score, program.sink}) {
                if (root == ir::kNoNode) continue;
                for (const NodeId id : ir::reachable(program.graph, std::span(&root, 1)))
                    derived.insert(program.graph[id].op);
                const std::vector<NodeId> leaves = leaves_of(program, root);
                const auto slopes = passes::derive(program.graph, root, leaves);
                REQUIRE(slopes);
                test::Instance instance(program, 7);
                int compared = 0;
                for (int point = 0; point < 40; ++point, instance.move()) {
                    ir::Environment& at = instance.environment();
                    at.q_len = random.integer(1, 7);
                    at.kv_len = random.integer(1, 7);
                    at.q_row = random.integer(0, 6);
                    at.kv_row = random.integer(0, 6);
                    compared += compare(program, root, leaves, *slopes, at, point);
                }
                CHECK(compared == 40 * static_cast<int>(leaves.size()));
            }
        }
    for (const Op op : {Op::q_row, Op::kv_row, Op::q_len, Op::kv_len})
        CHECK(derived.contains(op));
}
