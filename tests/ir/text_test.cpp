#include <doctest/doctest.h>

#include <limits>

#include "ir/print.h"
#include "ir/read.h"
#include "ir/verify.h"
#include "random_program.h"

using namespace flexc;
using ir::Op;

TEST_CASE("what is printed reads back as the same program") {
    for (const std::uint64_t seed : test::seeds(300)) {
        CAPTURE(seed);
        const ir::Program program = test::random_program(seed, {.tame = false});
        REQUIRE(ir::verify(program) == "");
        const std::string text = ir::print(program);
        const auto back = ir::read(text);
        REQUIRE_MESSAGE(back.has_value(), back.error().message);
        CHECK(ir::print(back->program) == text);
        // The same values, too: text could forget the same thing twice.
        test::Instance instance(program, seed);
        CHECK(ir::evaluate_boolean(program, program.mask, instance.environment()) ==
              ir::evaluate_boolean(back->program, back->program.mask, instance.environment()));
    }
}

TEST_CASE("numbers keep every bit that matters") {
    ir::Program program;
    ir::Graph& graph = program.graph;
    ir::NodeId sum = graph.real(0.1);
    for (double value :
         {-0.0, 1e-45, 3.4028234663852886e38, std::numeric_limits<double>::infinity(),
          -std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
        sum = graph.apply(Op::fadd, {sum, graph.real(value)});
    program.score = sum;
    const std::int64_t least = std::numeric_limits<std::int64_t>::min();
    program.mask = graph.apply(Op::ilt, {graph.integer(least), graph.integer(-1)});
    const std::string text = ir::print(program);
    CHECK(text.find("const_real -0 ") != std::string::npos);
    CHECK(text.find("const_int -9223372036854775808 ") != std::string::npos);
    CHECK(text.find("const_real nan ") != std::string::npos);
    const auto back = ir::read(text);
    REQUIRE(back);
    CHECK(ir::print(back->program) == text);
}

TEST_CASE("numbering does not depend on what else the graph holds") {
    ir::Program program;
    ir::Graph& graph = program.graph;
    graph.integer(77);
    program.score = graph.ambient(Op::score);
    graph.apply(Op::exp, {program.score});
    program.mask = graph.boolean(true);
    CHECK(ir::print(program) == "%0 = score : f32\n%1 = const_bool true : bool\n"
                                "score = %0\nmask = %1\n");
}

TEST_CASE("text that is no program is refused with its line") {
    auto message = [](std::string_view text) {
        const auto program = ir::read(text);
        REQUIRE_FALSE(program);
        return program.error().message;
    };
    CHECK(message("%0 = score : f32\n%1 = nonsense %0 : f32\n") == "line 2: no such operator");
    CHECK(message("%0 = fneg %7 : f32\n") == "line 1: an operand names no node above");
    CHECK(message("%0 = read t : f32\n") == "line 1: 't' is not declared or no such value");
    CHECK(message("score = %3\n") == "line 1: a root names no node");
    CHECK(message("buffer t: f99[]\n") == "line 1: no such buffer type");
    CHECK(message("%0 = score : f32\n%1 = iabs %0 : int\nx = %1\n") ==
          "node 1 (iabs): operand 0 is f32 instead of int");
    CHECK(message("%0 = score : int\n") == "line 1: the type is not the operator's");
}

TEST_CASE("verify finds what a pass could break") {
    ir::Program program;
    ir::Graph& graph = program.graph;
    program.buffers.push_back({.name = "t", .dims = {{.constant = 2}}, .span = {}});
    const ir::NodeId score = graph.ambient(Op::score);
    program.score = score;
    program.mask = graph.boolean(true);
    REQUIRE(ir::verify(program) == "");

    program.mask = score;
    CHECK(ir::verify(program) == "mask is not bool");
    program.mask = graph.boolean(true);
    program.score = graph.apply(Op::fadd, {score});
    CHECK(ir::verify(program).find("1 operands instead of 2") != std::string::npos);
    program.score = graph.read(0, ir::Type::real, {});
    CHECK(ir::verify(program).find("0 indices for the 1 dims of 't'") != std::string::npos);
    program.score = graph.read(0, ir::Type::real, {score});
    CHECK(ir::verify(program).find("an index is not an integer") != std::string::npos);
    program.score = graph.apply(Op::fselect, {score, score, score});
    CHECK(ir::verify(program).find("operand 0 is f32 instead of bool") != std::string::npos);
    program.score = ir::kNoNode;
    CHECK(ir::verify(program) == "score or mask is missing");
    program.score = score;
    program.buffers[0].dtype = DType::i32;
    program.buffers[0].grad = true;
    CHECK(ir::verify(program) == "buffer 't' wants a gradient but is not real");
}
