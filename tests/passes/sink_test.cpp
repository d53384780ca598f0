// What the passes make of sinks: values and gradients against the tape, and where others meet them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "ir/print.h"
#include "ir/read.h"
#include "passes/dense_bias.h"
#include "passes/describe.h"
#include "passes/gradient_order.h"
#include "passes/sink.h"
#include "program_of.h"
#include "random_program.h"
#include "tape.h"

using namespace flexc;
using ir::NodeId;
using passes::Place;

namespace {

bool is_near(double x, double y, double size = 0) {
    return std::fabs(x - y) <= 2e-5 * (1 + std::fabs(x) + std::fabs(y) + size);
}

} // namespace

TEST_CASE("values and gradients of random sinks are those of the tape") {
    int sinks = 0, slopes = 0;
    for (const std::uint64_t seed : test::seeds(400)) {
        CAPTURE(seed);
        const ir::Program program = test::random_program(seed, {.operators = 10, .cuts = true});
        if (program.sink == ir::kNoNode) continue;
        CAPTURE(ir::print(program));
        const auto mod = passes::lower(program, {});
        REQUIRE_MESSAGE(mod.has_value(), mod.error().message);
        REQUIRE(mod->sink != ir::kNoNode);
        CHECK(mod->place[mod->sink] <= Place::row);
        ++sinks;
        ir::Program of_sink = program;
        of_sink.score = program.sink;
        test::Instance instance(program, seed);
        for (int point = 0; point < 4; ++point, instance.move()) {
            ir::Environment environment = instance.environment();
            const test::TapeResult tape = test::differentiate(of_sink, environment);
            if (!tape.is_finite || tape.divides_by_zero || tape.margin < 1e-4) continue;
            REQUIRE(is_near(ir::evaluate_real(mod->program, mod->sink, environment), tape.score));
            // Of each buffer all together: reads may have become one.
            std::map<std::uint32_t, std::pair<double, double>> expected;
            std::map<std::uint32_t, double> actual;
            for (const test::ReadSlope& read : tape.reads) {
                auto& [sum, size] = expected[program.graph[read.read].symbol];
                sum += read.slope;
                size += std::fabs(read.slope);
            }
            const ir::Graph& graph = mod->program.graph;
            for (const passes::ReadGradient& gradient : mod->sink_gradients) {
                const ir::Node& read = graph[gradient.read];
                std::int64_t first = 0, end = 1;
                if (const NodeId counter = mod->counters[gradient.read]; counter != ir::kNoNode) {
                    const auto& range = graph[counter].operands;
                    first = ir::evaluate_integer(mod->program, range[0], environment);
                    end = ir::evaluate_integer(mod->program, range[1], environment);
                }
                for (environment.counter = first; environment.counter < end;
                     ++environment.counter) {
                    bool inside = true;
                    for (std::size_t i = 0; i < read.operands.size(); ++i) {
                        const std::int64_t index =
                            ir::evaluate_integer(mod->program, read.operands[i], environment);
                        inside = inside && index >= 0 &&
                                 index < environment.buffers[read.symbol]->extents[i];
                    }
                    if (inside)
                        actual[read.symbol] +=
                            ir::evaluate_real(mod->program, gradient.partial, environment);
                }
                environment.counter = 0;
            }
            for (const auto& [buffer, slope] : expected) {
                ++slopes;
                REQUIRE(is_near(actual[buffer], slope.first, slope.second));
            }
        }
    }
    CHECK(sinks > test::trials(400) / 3);
    CHECK(slopes > test::trials(400));
}

TEST_CASE("a program is the same after it was printed and read, the sink included") {
    const ir::Program program = test::program_of("buffer s: f32[H] grad\nsink = s[h] * 2");
    const std::string text = ir::print(program);
    CHECK(text.find("\nsink = %") != std::string::npos);
    const auto back = ir::read(text);
    REQUIRE(back.has_value());
    CHECK(ir::print(back->program) == text);
}

TEST_CASE("a sink of -inf is none") {
    for (const char* text : {"sink = -inf", "buffer s: f32[H] grad\nsink = s[h] * 0 if false else "
                                            "-inf"}) {
        const passes::Mod mod = test::lowered(text);
        CHECK(mod.sink == ir::kNoNode);
        CHECK(mod.sink_gradients.empty());
        CHECK(mod.program.sink == ir::kNoNode);
    }
}

TEST_CASE("the program of a sink alone has the arguments of the whole") {
    const passes::Mod mod = test::lowered(
        "buffer a: f32[H] grad\nbuffer c: f32[KV_LEN] grad\nbuffer doc: i32[KV_LEN]\nparam p: f32 "
        "= 2\nscore_mod = score * p + c[kv_idx]\nsink = a[h]\nmask_mod = doc[q_idx] == "
        "doc[kv_idx]");
    const passes::Mod sink = passes::sink_mod(mod);
    CHECK(passes::argument_slots(sink) == passes::argument_slots(mod));
    REQUIRE(sink.gradients.size() == 1);
    CHECK(mod.program.graph[sink.gradients[0].read].symbol == 0);
    CHECK(sink.place.size() == sink.program.graph.size());
}

TEST_CASE("a gradient that the sink adds to is no dense one, and is not stored") {
    const std::string dense = "buffer t: f32[B, H, Q_LEN, KV_LEN] grad\nscore_mod = score + "
                              "t[b, h, q_idx, kv_idx]\n";
    const passes::Mod alone = test::lowered(dense, {.deterministic = true});
    CHECK(passes::is_dense_gradient(alone, 0));
    CHECK(passes::sharing_of_biases(test::lowered(dense)).has_value());
    const passes::Mod both =
        test::lowered(dense + "sink = t[b, h, q_idx, 0]", {.deterministic = true});
    CHECK_FALSE(passes::is_dense_gradient(both, 0));
    CHECK(passes::exact_gradients(both) == std::vector<std::uint32_t>{0});
    const std::string sink = "sink = t[b, h, q_idx, 0]";
    CHECK_FALSE(passes::sharing_of_biases(test::lowered(dense + sink)).has_value());
    // Nor is there any without the score mod.
    const passes::Mod only =
        test::lowered("buffer s: f32[H] grad\nsink = s[h]", {.deterministic = true});
    CHECK(passes::exact_gradients(only) == std::vector<std::uint32_t>{0});
}

TEST_CASE("stages are described with the sink") {
    const passes::Mod mod = test::lowered("buffer s: f32[H] grad\nsink = s[h] * q_idx");
    CHECK(passes::describe_ir(mod).find("\nsink = %") != std::string::npos);
    CHECK(passes::describe_gradient(mod).find("# sink_read_0 is s[h]\n") != std::string::npos);
    CHECK(passes::describe_gradient(mod).find("is zero") == std::string::npos);
    CHECK(passes::describe_dependence(mod).find(
              "sink uses h, q_idx; computed per row, when a row ends\n") != std::string::npos);
}
