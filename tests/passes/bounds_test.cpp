#include <doctest/doctest.h>

#include <array>

#include "ir/print.h"
#include "ir/verify.h"
#include "passes/bounds.h"
#include "program_of.h"
#include "random_program.h"

using namespace flexc;
using ir::NodeId;
using ir::Op;

namespace {

// Walks only what a lazy evaluation would touch, and says whether a read there is outside. The
// definition that the boolean formula of the pass is held against.
class LazyReads {
  public:
    LazyReads(const ir::Program& program, const ir::Environment& environment)
        : program_(program), graph_(program.graph), environment_(environment),
          visited_(graph_.size(), false) {
        const std::array roots = {program.score, program.mask, program.sink};
        values_ = ir::evaluate<double>(program, roots, environment);
    }

    bool outside(NodeId id) {
        if (visited_[id]) return false;
        visited_[id] = true;
        const ir::Node& node = graph_[id];
        if (node.op == Op::band || node.op == Op::bor) {
            const bool first = outside(node.operands[0]);
            const bool decided = values_[node.operands[0]].boolean == (node.op == Op::bor);
            return (!decided && outside(node.operands[1])) || first;
        }
        if (node.op == Op::bselect || node.op == Op::iselect || node.op == Op::fselect) {
            const bool condition = outside(node.operands[0]);
            return outside(node.operands[values_[node.operands[0]].boolean ? 1 : 2]) || condition;
        }
        if (node.op == Op::sum) {
            const auto& range = graph_[node.operands[0]].operands;
            ir::Environment each = environment_;
            bool any = outside(range[0]) || outside(range[1]);
            for (each.counter = values_[range[0]].integer; each.counter < values_[range[1]].integer;
                 ++each.counter)
                any = LazyReads(program_, each).outside(node.operands[1]) || any;
            return any;
        }
        bool found = false;
        for (std::size_t i = 0; i < node.operands.size(); ++i) {
            found = outside(node.operands[i]) || found;
            if (node.op != Op::read) continue;
            const std::int64_t index = values_[node.operands[i]].integer;
            found = found || index < 0 || index >= environment_.buffers[node.symbol]->extents[i];
        }
        return found;
    }

  private:
    const ir::Program& program_;
    const ir::Graph& graph_;
    const ir::Environment& environment_;
    std::vector<ir::Value<double>> values_;
    std::vector<bool> visited_;
};

bool reports(const std::string& text, std::int64_t q, std::int64_t kv) {
    const passes::Mod mod =
        test::lowered("buffer t: f32[3]\nbuffer keep: bool[3]\nbuffer index: i32[3]\n" + text,
                      {.report_out_of_range = true});
    REQUIRE(mod.out_of_range != ir::kNoNode);
    const ir::BufferData t{{3}, {1, 2, 3}, {}, {}}, keep{{3}, {}, {1, 0, 1}, {}},
        index{{3}, {}, {0, 2, 7}, {}};
    ir::Environment environment;
    environment.sizes = {1, 1, 1, 9, 9, 64, 64};
    environment.buffers = {&t, &keep, &index};
    environment.q_idx = q;
    environment.kv_idx = kv;
    return ir::evaluate_boolean(mod.program, mod.out_of_range, environment);
}

} // namespace

TEST_CASE("a report means that a lazy evaluation reads outside") {
    int outside = 0, inside = 0;
    for (const std::uint64_t seed : test::seeds(1000)) {
        CAPTURE(seed);
        ir::Program program = test::random_program(seed, {.operators = 50});
        const NodeId report =
            passes::out_of_range(program, program.score, program.mask, program.sink);
        REQUIRE(ir::verify(program, std::span(&report, 1)) == "");
        CAPTURE(ir::print(program));
        test::Instance instance(program, seed);
        for (int point = 0; point < 20; ++point, instance.move()) {
            const ir::Environment& environment = instance.environment();
            LazyReads lazy(program, environment);
            bool expected = lazy.outside(program.mask);
            if (ir::evaluate_boolean(program, program.mask, environment))
                expected = lazy.outside(program.score) || expected;
            if (program.sink != ir::kNoNode) expected = lazy.outside(program.sink) || expected;
            REQUIRE(ir::evaluate_boolean(program, report, environment) == expected);
            ++(expected ? outside : inside);
        }
    }
    CHECK(outside > 2 * test::trials(1000));
    CHECK(inside > 2 * test::trials(1000));
}

TEST_CASE("only reads that are taken are reported") {
    CHECK_FALSE(reports("score_mod = score + t[kv_idx]", 0, 2));
    CHECK(reports("score_mod = score + t[kv_idx]", 0, 3));
    CHECK(reports("score_mod = score + t[kv_idx - 1]", 0, 0));
    CHECK_FALSE(reports("score_mod = score + t[kv_idx]\nmask_mod = kv_idx < 3", 0, 5));
    CHECK_FALSE(reports("score_mod = t[kv_idx] if kv_idx < 3 else score", 0, 5));
    CHECK(reports("score_mod = score if kv_idx < 3 else t[kv_idx]", 0, 5));
    CHECK_FALSE(reports("mask_mod = kv_idx < 3 and keep[kv_idx]", 0, 5));
    CHECK(reports("mask_mod = keep[kv_idx] and kv_idx < 3", 0, 5));
    CHECK_FALSE(reports("mask_mod = kv_idx >= 3 or keep[kv_idx]", 0, 5));
    // The index of a read is itself read: 7 is outside t.
    CHECK(reports("score_mod = score + t[index[kv_idx]]", 0, 2));
    CHECK_FALSE(reports("score_mod = score + t[index[kv_idx]]", 0, 1));
    // A report of the mask counts even where it hides the element.
    CHECK(reports("mask_mod = keep[kv_idx] and q_idx > 100", 0, 5));
}

TEST_CASE("where everything is proven there is nothing to report") {
    const passes::Mod mod =
        test::lowered("buffer t: f32[H]\nscore_mod = score + t[h]", {.report_out_of_range = true});
    CHECK(mod.program.graph[mod.out_of_range].op == Op::const_bool);
    CHECK(mod.program.graph[mod.out_of_range].integer == 0);
    CHECK(test::lowered("score_mod = score").out_of_range == ir::kNoNode);
}
