// How values use a 2-D key index, against their values at every key.
#include <map>

#include <doctest/doctest.h>

#include "analysis/key_index_2d.h"
#include "program_of.h"
#include "random_program.h"

using namespace flexc;
using analysis::AffineForm;
using analysis::KeyUse;
using ir::NodeId;

namespace {

constexpr int kKeys = 100;

// Keys of which the node must have one value: those with the same class.
std::int64_t key_class(KeyUse use, std::int64_t kv, std::int64_t width) {
    switch (use) {
    case KeyUse::none: return 0;
    case KeyUse::quotient: return kv / width;
    case KeyUse::remainder: return kv % width;
    case KeyUse::other: return kv;
    }
    return kv;
}

void check_values(const ir::Program& program, std::int64_t width, std::uint64_t seed) {
    const std::vector<analysis::KeyUses> uses = analysis::key_uses(program.graph);
    test::Instance instance(program, seed);
    ir::Environment& environment = instance.environment();
    const std::array roots = {program.score, program.mask};
    const std::vector<NodeId> nodes = ir::reachable(program.graph, roots);
    std::vector<std::map<std::int64_t, ir::Value<double>>> found(program.graph.size());
    for (std::int64_t kv = 0; kv < kKeys; ++kv) {
        environment.kv_idx = kv;
        const auto values = ir::evaluate<double>(program, roots, environment);
        for (const NodeId id : nodes) {
            const auto [first, is_new] =
                found[id].try_emplace(key_class(uses[id].with(width), kv, width), values[id]);
            if (is_new) continue;
            REQUIRE(first->second.integer == values[id].integer);
            REQUIRE(first->second.boolean == values[id].boolean);
            const bool both_nan =
                first->second.real != first->second.real && values[id].real != values[id].real;
            REQUIRE((both_nan || first->second.real == values[id].real));
        }
    }
}

KeyUse use_of_score(const std::string& text, std::int64_t width) {
    const ir::Program program = test::program_of(text);
    return analysis::key_uses(program.graph)[program.score].with(width);
}

} // namespace

TEST_CASE("values that use keys through a grid are the same in its rows or columns") {
    for (const char* text :
         {"score + (kv_idx // 12 + q_idx) * 2", "score + kv_idx % 12 - kv_idx // 12",
          "score + (kv_idx // 36 if kv_idx % 4 == 1 else kv_idx % 6)",
          ("buffer t: f32[9, 12]\nscore_mod = score + t[kv_idx // 12, kv_idx % 12] + "
           "t[kv_idx // 24, 0] * t[0, kv_idx % 3]"),
          "score + kv_idx // 5 + kv_idx % 7 + (kv_idx + 1) // 12"})
        for (const std::int64_t width : {2, 3, 5, 6, 7, 12, 24})
            check_values(test::program_of(text), width, static_cast<std::uint64_t>(width));
    for (const std::uint64_t seed : test::seeds(40)) {
        CAPTURE(seed);
        check_values(test::random_program(seed), 3, seed);
    }
}

TEST_CASE("what a value uses of a grid of keys") {
    CHECK(use_of_score("score + kv_idx // 12", 12) == KeyUse::quotient);
    CHECK(use_of_score("score + kv_idx // 24 * 3", 12) == KeyUse::quotient);
    CHECK(use_of_score("score + kv_idx // 12", 24) == KeyUse::other);
    CHECK(use_of_score("score + kv_idx % 12 + kv_idx % 4", 12) == KeyUse::remainder);
    CHECK(use_of_score("score + kv_idx % 24", 12) == KeyUse::other);
    CHECK(use_of_score("score + kv_idx // 12 + kv_idx % 12", 12) == KeyUse::other);
    CHECK(use_of_score("score + kv_idx", 12) == KeyUse::other);
    CHECK(use_of_score("score + q_idx // 12", 12) == KeyUse::none);
    const ir::Program program =
        test::program_of("score + kv_idx // 24 + kv_idx % 6 + kv_idx // 6 + q_idx % 5");
    const std::array roots = {program.score};
    CHECK(analysis::key_divisors(program.graph, roots) == std::vector<std::int64_t>{6, 24});
}

TEST_CASE("rows of more keys than a tile has are rows of a part of them") {
    const ir::Program program =
        test::program_of("score + kv_idx // 512 + kv_idx // 200 + kv_idx // 257 + kv_idx // 40 + "
                         "kv_idx // 3 + kv_idx // 262");
    const std::array roots = {program.score};
    const auto widths = [&](auto suits) {
        return analysis::key_widths(program.graph, roots, suits);
    };
    using Widths = std::vector<std::int64_t>;
    CHECK(widths([](std::int64_t) { return true; }) == Widths{3, 40, 100, 128});
    CHECK(widths([](std::int64_t width) { return width % 16 == 0; }) == Widths{3, 40, 128});
    CHECK(widths([](std::int64_t width) { return width <= 64; }) == Widths{3, 40, 50, 64});
    CHECK(use_of_score("score + kv_idx // 512", 128) == KeyUse::quotient);
}

TEST_CASE("indices that gain the same from column to column, row to row or query to query") {
    const auto index_in = [](const std::string& index, auto is_linear) {
        const ir::Program program = test::program_of(
            "buffer order: i32[12]\nbuffer t: f32[99]\nscore_mod = score + t[" + index + "]");
        NodeId read = 0;
        for (NodeId id = 0; id < program.graph.size(); ++id)
            if (program.graph[id].op == ir::Op::read && program.graph[id].type == ir::Type::real)
                read = id;
        const auto forms =
            analysis::affine_forms(program.graph, analysis::dependences(program.graph));
        return is_linear(program.graph, forms[program.graph[read].operands.at(0)]);
    };
    const auto by_column = [](const ir::Graph& graph, const AffineForm& form) {
        return analysis::is_linear_by_column(graph, form, 12);
    };
    const auto by_row = [](const ir::Graph& graph, const AffineForm& form) {
        return analysis::is_linear_by_row(graph, form, 12);
    };
    const auto by_query = [](const ir::Graph&, const AffineForm& form) {
        return analysis::is_linear_by_query(form);
    };
    for (const char* index : {"kv_idx % 12", "q_idx * 3 + kv_idx % 12", "11 - kv_idx % 12",
                              "kv_idx % 12 - q_idx % 5 + h", "q_idx"})
        CHECK_MESSAGE(index_in(index, by_column), index);
    for (const char* index : {"order[kv_idx % 12]", "abs(kv_idx % 12 - 3)", "kv_idx % 6",
                              "(kv_idx % 12) * (kv_idx % 12) // 11", "kv_idx // 12", "kv_idx",
                              "kv_idx % 12 if h > 0 else 4"})
        CHECK_MESSAGE(!index_in(index, by_column), index);
    for (const char* index : {"kv_idx // 12", "q_idx // 5 - kv_idx // 12 + 13", "h"})
        CHECK_MESSAGE(index_in(index, by_row), index);
    for (const char* index : {"kv_idx // 24", "kv_idx % 12", "order[kv_idx // 12]", "kv_idx"})
        CHECK_MESSAGE(!index_in(index, by_row), index);
    for (const char* index : {"q_idx", "kv_idx * 3 - q_idx", "q_idx + q_idx + h", "kv_idx % 12"})
        CHECK_MESSAGE(index_in(index, by_query), index);
    for (const char* index : {"order[q_idx]", "q_idx // 3", "max(q_idx, 4)", "q_idx * h"})
        CHECK_MESSAGE(!index_in(index, by_query), index);
}
