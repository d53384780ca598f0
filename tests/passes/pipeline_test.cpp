#include <doctest/doctest.h>

#include <algorithm>

#include "ir/print.h"
#include "ir/verify.h"
#include "passes/describe.h"
#include "passes/hoist.h"
#include "passes/limits.h"
#include "program_of.h"
#include "random_program.h"

using namespace flexc;
using ir::NodeId;
using ir::Op;
using passes::Place;

namespace {

bool encloses(Place outer, Place inner) {
    if (outer == inner) return true;
    if (outer == Place::row && inner == Place::column) return false;
    return outer < inner;
}

Result<passes::Mod> lower_random(std::uint64_t seed) {
    return passes::lower(test::random_program(seed, {.operators = 40}),
                         {.report_out_of_range = seed % 2 == 0, .head_dim = 16});
}

std::vector<std::string> slot_names(const passes::Mod& mod) {
    std::vector<std::string> names;
    for (const passes::ArgumentSlot& slot : passes::argument_slots(mod))
        names.push_back(passes::slot_name(slot, mod.program));
    return names;
}

} // namespace

TEST_CASE("values are computed where all that they need is there") {
    for (const std::uint64_t seed : test::seeds(300)) {
        CAPTURE(seed);
        const auto mod = lower_random(seed);
        REQUIRE_MESSAGE(mod.has_value(), mod.error().message);
        const ir::Graph& graph = mod->program.graph;
        REQUIRE(mod->place.size() == graph.size());
        REQUIRE(mod->dependence.size() == graph.size());
        REQUIRE(mod->ranges.of_node.size() == graph.size());
        for (NodeId id : mod->order)
            for (NodeId operand : graph[id].operands) {
                const bool is_term =
                    graph[id].op == Op::sum && mod->counters[operand] != ir::kNoNode;
                REQUIRE((is_term || encloses(mod->place[operand], mod->place[id])));
                REQUIRE(std::ranges::binary_search(mod->order, operand));
            }
        for (const auto* bounds : {&mod->band.low, &mod->band.high})
            for (NodeId bound : *bounds)
                REQUIRE(encloses(mod->place[bound], Place::head));
    }
}

TEST_CASE("a hoisted value is the same for all that share it") {
    for (const std::uint64_t seed : test::seeds(200)) {
        CAPTURE(seed);
        const auto mod = lower_random(seed);
        REQUIRE(mod);
        test::Instance instance(mod->program, seed);
        const ir::Environment first = instance.environment();
        const auto before = ir::evaluate<double>(mod->program, mod->order, first);
        for (Place place : {Place::launch, Place::head, Place::row, Place::column}) {
            instance.move();
            ir::Environment moved = instance.environment();
            if (place >= Place::head) {
                moved.b = first.b;
                moved.h = first.h;
                moved.h_kv = first.h_kv;
            }
            if (place == Place::row) moved.q_idx = first.q_idx;
            if (place == Place::column) moved.kv_idx = first.kv_idx;
            const auto after = ir::evaluate<double>(mod->program, mod->order, moved);
            for (NodeId id : mod->order) {
                if (mod->place[id] != place) continue;
                REQUIRE(before[id].integer == after[id].integer);
                REQUIRE(before[id].boolean == after[id].boolean);
                const double x = before[id].real, y = after[id].real;
                REQUIRE((x == y || (x != x && y != y)));
            }
        }
    }
}

TEST_CASE("lowering keeps the program's meaning") {
    for (const std::uint64_t seed : test::seeds(300)) {
        CAPTURE(seed);
        const ir::Program program = test::random_program(seed, {.steps = false});
        const auto mod = passes::lower(program, {});
        REQUIRE(mod);
        test::Instance instance(program, seed);
        for (int point = 0; point < 5; ++point, instance.move()) {
            const ir::Environment& environment = instance.environment();
            CHECK(ir::evaluate_real(mod->program, mod->score, environment) ==
                  doctest::Approx(ir::evaluate_real(program, program.score, environment))
                      .epsilon(1e-5));
            CHECK(ir::evaluate_boolean(mod->program, mod->mask, environment) ==
                  ir::evaluate_boolean(program, program.mask, environment));
        }
    }
}

TEST_CASE("the same program lowers to the same text") {
    const std::string text = "buffer t: f32[H] grad\nscore_mod = tanh(score * t[h]) + t[0]\n"
                             "mask_mod = q_idx >= kv_idx";
    const passes::Mod first = test::lowered(text), second = test::lowered(text);
    CHECK(passes::describe_gradient(first) == passes::describe_gradient(second));
    CHECK(passes::describe_dependence(first) == passes::describe_dependence(second));
}

TEST_CASE("each pass is traced by its name, in the order of the list") {
    std::vector<std::string> names;
    const passes::Mod mod = test::lowered(
        "score_mod = score * 2 + D",
        {.head_dim = 64, .trace = [&](std::string_view pass, std::string_view ir, double ms) {
             names.emplace_back(pass);
             CHECK(ir.find("score = %") != std::string_view::npos);
             CHECK(ms >= 0);
         }});
    CHECK(names == std::vector<std::string>{
                       "specialise", "simplify", "decide", "derive", "simplify-derivative", "band",
                       "bounds", "simplify-facts", "analyse", "gradient-sums", "verify"});
    CHECK(passes::formula(mod.program, mod.score) == "(score * 2) + 64");
}

TEST_CASE("head dims become constants, in dims too") {
    const std::string text = "buffer t: f32[D, DV]\nscore_mod = score + t[D - 1, 3] * DV";
    const passes::Mod fixed = test::lowered(text, {.head_dim = 32, .head_dim_v = 8});
    CHECK(passes::formula(fixed.program, fixed.score) == "score + (t[31, 3] * 8)");
    REQUIRE(fixed.program.buffers[0].dims[0].is_constant());
    CHECK(fixed.program.buffers[0].dims[0].constant == 32);
    const passes::Mod open = test::lowered(text);
    CHECK(passes::formula(open.program, open.score) == "score + (t[D - 1, 3] * DV)");
}

TEST_CASE("no derivative without a backward") {
    const passes::Mod mod =
        test::lowered("buffer t: f32[H] grad\nscore_mod = score + t[h]", {.backward = false});
    CHECK(mod.d_score == ir::kNoNode);
    CHECK(mod.gradients.empty());
    CHECK(passes::describe_gradient(mod) == "# compiled without a backward\n");
}

TEST_CASE("a derivative beyond the limit is an error, not a long wait") {
    ir::Program program;
    ir::Graph& graph = program.graph;
    program.buffers.push_back(
        {.name = "t", .dims = {{.size = ir::kKvLen}}, .grad = true, .span = {}});
    NodeId value = graph.ambient(Op::score);
    for (int i = 0; i < 1300; ++i) {
        const NodeId index = graph.apply(Op::iadd, {graph.ambient(Op::kv_idx), graph.integer(i)});
        const NodeId read = graph.read(0, ir::Type::real, {index});
        value = graph.apply(Op::sin, {graph.apply(Op::fmul, {value, read})});
    }
    program.score = value;
    program.mask = graph.boolean(true);
    const auto mod = passes::lower(program, {});
    REQUIRE_FALSE(mod);
    CHECK(mod.error().code == ErrorCode::limit);
    CHECK(mod.error().message.find(std::to_string(passes::kMaxDerivativeNodes)) !=
          std::string::npos);
    CHECK(passes::lower(program, {.backward = false}).has_value());
}

TEST_CASE("a long chain is derived without deep recursion") {
    ir::Program program;
    ir::Graph& graph = program.graph;
    NodeId value = graph.ambient(Op::score);
    for (int i = 0; i < 4000; ++i)
        value = graph.apply(i % 2 == 0 ? Op::sin : Op::fabs, {value});
    program.score = value;
    program.mask = graph.boolean(true);
    const auto mod = passes::lower(program, {});
    REQUIRE_MESSAGE(mod.has_value(), mod.error().message);
}

TEST_CASE("wrong programs are a bug of the caller, and say so") {
    ir::Program program;
    const auto mod = passes::lower(program, {});
    REQUIRE_FALSE(mod);
    CHECK(mod.error().code == ErrorCode::internal);
}

TEST_CASE("reads that turn out not to be shifted leave nothing behind") {
    const passes::Mod mod =
        test::lowered("buffer u: f32[KV_LEN, N] grad\n"
                      "score_mod = score + u[kv_idx, clamp(q_idx - kv_idx + 9, 2, N - 3)]");
    CHECK(mod.place.size() == mod.program.graph.size());
}

TEST_CASE("argument slots: what the program uses, in a fixed order") {
    const passes::Mod mod =
        test::lowered("buffer t: f32[H, 4] grad\nbuffer unused: f32[H]\nbuffer doc: i32[KV_LEN]\n"
                      "param cap: f32 = 2\nparam other: int = 1\n"
                      "score_mod = score * cap + t[h, doc[kv_idx]] * H",
                      {.report_out_of_range = true});
    CHECK(slot_names(mod) == std::vector<std::string>{"t_data", "t_extent_0", "t_extent_1",
                                                      "t_stride_0", "t_stride_1", "t_gradient",
                                                      "t_gradientstride_0", "t_gradientstride_1",
                                                      "doc_data", "doc_extent_0", "doc_stride_0",
                                                      "cap_param", "H_size", "out_of_range"});
    CHECK(slot_names(test::lowered("score_mod = score")).empty());
    const passes::Mod forward =
        test::lowered("buffer t: f32[H] grad\nscore_mod = score + t[h]", {.backward = false});
    CHECK(slot_names(forward) == std::vector<std::string>{"t_data", "t_extent_0", "t_stride_0"});
}
