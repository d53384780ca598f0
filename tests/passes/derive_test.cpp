#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <set>

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

std::vector<NodeId> leaves_of(const ir::Program& program) {
    std::vector<NodeId> leaves;
    for (NodeId id : ir::reachable(program.graph, std::span(&program.score, 1))) {
        const ir::Node& node = program.graph[id];
        if (node.op == Op::score || (node.op == Op::read && program.buffers[node.symbol].grad))
            leaves.push_back(id);
    }
    return leaves;
}

} // namespace

TEST_CASE("derivatives of random expressions are those of dual numbers") {
    std::set<Op> derived; // operators that some derivative went through
    int compared = 0;
    for (const std::uint64_t seed : test::seeds(1500)) {
        CAPTURE(seed);
        ir::Program program = test::random_program(seed);
        const ir::NodeId before = program.graph.size();
        const std::vector<NodeId> leaves = leaves_of(program);
        const auto slopes = passes::derive(program.graph, program.score, leaves);
        REQUIRE(slopes);
        REQUIRE(slopes->size() == leaves.size());
        test::Instance instance(program, seed);
        const std::vector<NodeId> counters = ir::counters_of(program.graph);
        for (int point = 0; point < 8; ++point, instance.move()) {
            for (std::size_t i = 0; i < leaves.size(); ++i) {
                const std::array roots = {program.score, (*slopes)[i]};
                if (!choose_term(program, counters[leaves[i]], point, instance.environment()))
                    continue;
                if (!all_finite(program, roots, instance.environment())) continue;
                const double expected =
                    ir::evaluate_slope(program, program.score, instance.environment(), leaves[i]);
                const double actual =
                    (*slopes)[i] == ir::kNoNode
                        ? 0
                        : ir::evaluate_real(program, (*slopes)[i], instance.environment());
                CAPTURE(ir::print(program));
                REQUIRE(std::fabs(actual - expected) <=
                        1e-5 * (1 + std::fabs(expected) + std::fabs(actual)));
                ++compared;
            }
        }
        for (NodeId id = 0; id < before; ++id)
            derived.insert(program.graph[id].op);
    }
    CHECK(compared > 6 * test::trials(1500));
    for (std::size_t op = 0; op < ir::all_operators().size(); ++op) {
        CAPTURE(ir::all_operators()[op].name);
        if (static_cast<Op>(op) != Op::const_bool) CHECK(derived.contains(static_cast<Op>(op)));
    }
}
