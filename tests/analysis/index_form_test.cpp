// Digits, and what uses positions through differences of digits alone, against values.
#include <array>
#include <map>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include "analysis/index_form.h"
#include "program_of.h"
#include "random_program.h"

using namespace flexc;
using analysis::IndexForms;
using analysis::Product;
using ir::NodeId;

namespace {

struct Index {
    ir::Program program;
    NodeId id = ir::kNoNode;
};

Index index_of(const std::string& text) {
    Index index{
        test::program_of("buffer t: f32[N]\nparam W: i32 = 3\nscore_mod = score + t[" + text + "]"),
        ir::kNoNode};
    for (NodeId id = 0; id < index.program.graph.size(); ++id)
        if (index.program.graph[id].op == ir::Op::read)
            index.id = index.program.graph[id].operands[0];
    return index;
}

std::optional<analysis::Digit> digit_of(const std::string& text) {
    const Index index = index_of(text);
    const analysis::Ranges ranges = analysis::ranges(index.program);
    IndexForms forms(index.program.graph, ranges);
    forms.find(std::span(&index.id, 1));
    return forms.digit(index.id);
}

} // namespace

TEST_CASE("products: by constants and factors") {
    const Product x{6, {1, 4, 4}}, y{-2, {4}};
    CHECK(*analysis::multiply(x, y) == Product{-12, {1, 4, 4, 4}});
    CHECK(*analysis::quotient(x, y) == Product{-3, {1, 4}});
    CHECK(!analysis::quotient(y, x));
    CHECK(!analysis::quotient(Product{6, {}}, Product{4, {}}));
    CHECK(!analysis::multiply({INT64_MAX, {}}, {2, {}}));
    CHECK(!analysis::quotient(x, {0, {}}));
}

TEST_CASE("digits of positions, however they are written") {
    const auto is = [](const std::string& text, std::int64_t offset, std::int64_t start,
                       std::int64_t end) {
        const auto digit = digit_of(text);
        return digit && digit->offset == analysis::AffineForm{.constant = offset} &&
               digit->start.is(start) && (end == 0 ? !digit->end : digit->end->is(end));
    };
    CHECK(is("q_idx", 0, 1, 0));
    CHECK(is("kv_idx // 7", 0, 7, 0));
    CHECK(is("(kv_idx - 1) % 7", -1, 1, 7));
    CHECK(is("kv_idx // 7 % 3", 0, 7, 21));
    CHECK(is("kv_idx % 21 // 7", 0, 7, 21));
    CHECK(is("kv_idx // 7 // 3", 0, 21, 0));
    CHECK(is("(kv_idx // 7 + 2) // 3", 14, 21, 0));
    CHECK(is("(kv_idx // 7 + 2) % 3", 14, 7, 21));
    CHECK(is("kv_idx >> 3", 0, 8, 0));
    CHECK(is("kv_idx & 15", 0, 1, 16));
    CHECK(is("kv_idx % 21 % 7", 0, 1, 7));
    for (const char* text : {"2 * kv_idx // 7", "kv_idx % 20 // 7", "(kv_idx % 21 + 1) // 7",
                             "kv_idx % 20 % 7", "kv_idx // h", "kv_idx & 5", "kv_idx // (N // 4)",
                             "(q_idx - kv_idx) // 7", "kv_idx // (0 - 3)", "h // 7"})
        CHECK_MESSAGE(!digit_of(text), text);
    CHECK(digit_of("(kv_idx + h) // W")->start.factors.size() == 1);
    CHECK(digit_of("(kv_idx + h) // (2 * N)")->start.constant == 2);
}

TEST_CASE(
    "what uses positions through differences of digits alone is the same wherever these are") {
    // Differences of digits are unchanged when both positions move by all widths.
    for (const std::uint64_t seed : test::seeds(150)) {
        CAPTURE(seed);
        const ir::Program program = test::random_program(seed);
        const analysis::Ranges ranges = analysis::ranges(program);
        IndexForms forms(program.graph, ranges);
        const std::array roots = {program.score};
        forms.find(roots);
        const std::vector<NodeId> nodes = ir::reachable(program.graph, roots);
        const auto counters = ir::counters_of(program.graph);
        test::Instance instance(program, seed);
        ir::Environment& at = instance.environment();
        std::map<std::pair<NodeId, std::int64_t>, ir::Value<double>> found;
        for (at.q_idx = 0; at.q_idx < 6; ++at.q_idx)
            for (at.kv_idx = 0; at.kv_idx < 6; ++at.kv_idx) {
                const auto values = ir::evaluate<double>(program, roots, at);
                for (const NodeId id : nodes) {
                    const analysis::Differences& differences = forms.differences(id);
                    const bool is_of_distance =
                        differences.only && counters[id] == ir::kNoNode &&
                        std::ranges::all_of(differences.used,
                                            &analysis::DigitDifference::is_distance);
                    if (!is_of_distance) continue;
                    const auto [first, is_new] = found.try_emplace(
                        {id, differences.used.empty() ? 0 : at.q_idx - at.kv_idx}, values[id]);
                    if (is_new) continue;
                    REQUIRE(first->second.integer == values[id].integer);
                    REQUIRE(first->second.boolean == values[id].boolean);
                    const double x = first->second.real, y = values[id].real;
                    REQUIRE((x == y || (x != x && y != y)));
                }
            }
    }
}

TEST_CASE("grids: widths that divide each other, and the same offsets") {
    const auto grid = [](const std::string& text) {
        const Index index = index_of(text);
        const analysis::Ranges ranges = analysis::ranges(index.program);
        IndexForms forms(index.program.graph, ranges);
        forms.find(std::span(&index.id, 1));
        const analysis::Differences& differences = forms.differences(index.id);
        return differences.only ? analysis::grid_of(differences.used) : std::nullopt;
    };
    const auto both = grid("q_idx % 4 - kv_idx % 4 + 9 * (q_idx // 4 - kv_idx // 4)");
    REQUIRE(both.has_value());
    CHECK(both->axes.size() == 2);
    // Of the middle place alone.
    CHECK(grid("q_idx // 4 % 3 - kv_idx // 4 % 3")->axes.size() == 1);
    // q - kv beside a digit is both of its places.
    CHECK(grid("(q_idx - kv_idx) * 3 + q_idx // 4 - kv_idx // 4")->axes.size() == 2);
    CHECK(!grid("q_idx % 4 - kv_idx % 4 + q_idx // 6 - kv_idx // 6"));
    CHECK(!grid("q_idx % 4 - kv_idx % 4 + (q_idx + 1) // 4 - (kv_idx + 1) // 4"));
    CHECK(!grid("q_idx % 4 - kv_idx % 5"));
}
