// Integers of one position that repeat, against the interpreter.
#include <doctest/doctest.h>

#include "analysis/staircase.h"
#include "ir/interp.h"
#include "program_of.h"

using namespace flexc;
using analysis::Staircase;

namespace {

// Of the index of the first read.
ir::NodeId index_of(const ir::Program& program) {
    for (ir::NodeId id = 0; id < program.graph.size(); ++id)
        if (program.graph[id].op == ir::Op::read) return program.graph[id].operands[0];
    return ir::kNoNode;
}
std::string reading(std::string_view index) {
    return "buffer t: f32[N]\nscore_mod = score + t[" + std::string(index) + "]";
}

} // namespace

TEST_CASE("steps repeat wherever a period starts") {
    for (const std::string_view index :
         {"kv_idx", "7", "kv_idx // 5", "kv_idx % 12 * 3 - kv_idx // 12",
          "(kv_idx + 3) // 4 % 6 * 31 + (kv_idx + 3) % 4", "(5 - 2 * kv_idx) // 3",
          "-(kv_idx // 16 % 8) * 15 - kv_idx % 16 - kv_idx // 128 * 225"}) {
        CAPTURE(index);
        const ir::Program program = test::program_of(reading(index));
        const ir::NodeId id = index_of(program);
        const auto steps = Staircase::of(program.graph, id, ir::Op::kv_idx);
        REQUIRE(steps.has_value());
        ir::Environment at;
        at.sizes.assign(program.sizes.size(), 1000);
        for (at.kv_idx = 0; at.kv_idx < 600; ++at.kv_idx)
            CHECK(steps->at(at.kv_idx) == ir::evaluate_integer(program, id, at));
    }
}

TEST_CASE("what is gained is the same from all multiples of a step, or nothing is said") {
    const ir::Program program = test::program_of(reading("kv_idx // 6 * 10 + kv_idx % 6"));
    const auto steps = Staircase::of(program.graph, index_of(program), ir::Op::kv_idx);
    REQUIRE(steps.has_value());
    CHECK(steps->gain(6, 0, 5) == 5);
    CHECK(steps->gain(12, 0, 7) == 11);
    CHECK(steps->gain(6, 3, 9) == 10);
    CHECK_FALSE(steps->gain(4, 0, 3).has_value());
}

TEST_CASE("values of something else, and long periods, have no steps") {
    for (const std::string_view index : {"q_idx", "kv_idx * kv_idx", "min(kv_idx, 9)", "kv_idx + h",
                                         "7 // (kv_idx + 1)", "kv_idx % 1000003"}) {
        CAPTURE(index);
        const ir::Program program = test::program_of(reading(index));
        CHECK_FALSE(Staircase::of(program.graph, index_of(program), ir::Op::kv_idx).has_value());
    }
}
