// Sums that are loops mean what their terms mean, written out.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <map>

#include "ir/print.h"
#include "ir/verify.h"
#include "passes/describe.h"
#include "program_of.h"
#include "random_program.h"
#include "replaced.h"

using namespace flexc;
using ir::NodeId;
using ir::Op;

namespace {

constexpr int kTerms = 9; // a loop
constexpr const char* kDeclarations =
    "buffer a: f32[Q_LEN, 9] grad\nbuffer c: f32[9, KV_LEN] grad\n"
    "buffer w: f32[H, 7] grad\nbuffer n: i32[9]\n";

// "sum(term)" as a loop over i, and with each term in its place.
std::string as_loop(const std::string& text) {
    return test::replaced(text, "sum(", "sum(i in 0..9: ");
}
std::string written_out(const std::string& text) {
    const std::size_t begin = text.rfind("sum("); // one that holds no other
    if (begin == std::string::npos) return text;
    std::size_t end = begin + 4;
    for (int open = 1; open > 0; ++end)
        open += text[end] == '(' ? 1 : text[end] == ')' ? -1 : 0;
    std::string terms;
    for (int i = 0; i < kTerms; ++i)
        terms += (i == 0 ? "" : " + ") +
                 test::replaced(text.substr(begin + 3, end - begin - 3), "@", std::to_string(i));
    return written_out(text.substr(0, begin) + "(" + terms + ")" + text.substr(end));
}

bool is_loop(const passes::Mod& mod) {
    for (NodeId id : mod.order)
        if (mod.program.graph[id].op == Op::sum) return true;
    return false;
}

// Of every element of every buffer.
using Gradients = std::map<std::vector<std::int64_t>, double>;

void add(const passes::Mod& mod, const passes::ReadGradient& gradient,
         const ir::Environment& environment, Gradients& sums) {
    const ir::Node& read = mod.program.graph[gradient.read];
    std::vector<std::int64_t> element = {read.symbol};
    const auto& extents = environment.buffers[read.symbol]->extents;
    for (std::size_t i = 0; i < read.operands.size(); ++i) {
        element.push_back(ir::evaluate_integer(mod.program, read.operands[i], environment));
        if (element.back() < 0 || element.back() >= extents[i]) return;
    }
    sums[element] += ir::evaluate_real(mod.program, gradient.partial, environment);
}

Gradients gradients(const passes::Mod& mod, ir::Environment environment) {
    Gradients sums;
    for (const passes::ReadGradient& gradient : mod.gradients) {
        const bool of_term = mod.counters[gradient.read] != ir::kNoNode;
        for (environment.counter = 0; environment.counter < (of_term ? kTerms : 1);
             ++environment.counter)
            add(mod, gradient, environment, sums);
    }
    return sums;
}

bool close(double x, double y) { return std::fabs(x - y) <= 1e-5 * (1 + std::fabs(x)); }

} // namespace

TEST_CASE("a loop and its terms written out have the same value and the same gradients") {
    const char* const texts[] = {
        "score + sum(a[q_idx, @] * c[@, kv_idx])",
        "score * sum(a[q_idx, @]) + sum(c[@, kv_idx] * score)",
        "score - sqrt(sum((a[q_idx, @] - c[@, kv_idx]) ** 2) + 0.5)",
        // A sum in the terms of another, by way of what they share.
        "score + sum(a[q_idx, @] / sqrt(sum(a[q_idx, @] ** 2) + 1) * c[@, kv_idx])",
        "score + sum(a[q_idx, @] * w[h, 2] * tanh(score * c[@, kv_idx]))",
        "score + w[h, 0] * sum(where(c[@, kv_idx] > a[q_idx, @], score * a[q_idx, @], w[h, 1]))",
        // Indices outside, reads through others, a term that no read changes.
        "score + sum(w[h, @] * a[q_idx, @ - 2]) + sum(a[q_idx, n[@]]) + sum(score)",
        "score * exp(-abs(sum(@ * c[@, kv_idx] - a[q_idx, 8 - @])))",
        "score + sum((n[@] + q_idx) % 5) * w[h, 3]",
    };
    for (const std::string text : texts) {
        CAPTURE(text);
        // The counter's name inside of a loop.
        const std::string loop_text = test::replaced(as_loop(text), "@", "i");
        const std::string inner = "sum(i in 0..9: a[q_idx, i] ** 2)";
        std::string body = "score_mod {\n  square = " + inner + "\n  " + loop_text + "\n}\n";
        const std::size_t second = body.find(inner, body.find(inner) + 1);
        if (second != std::string::npos) body.replace(second, inner.size(), "square");
        const passes::PipelineOptions options{.backward = true};
        const passes::Mod loop = test::lowered(kDeclarations + body, options);
        const passes::Mod terms =
            test::lowered(std::string(kDeclarations) + "score_mod = " + written_out(text), options);
        CHECK(is_loop(loop));
        CHECK(!is_loop(terms));
        test::Instance instance(terms.program, 11);
        for (int point = 0; point < 5; ++point, instance.move()) {
            const ir::Environment& at = instance.environment();
            CHECK(close(ir::evaluate_real(terms.program, terms.score, at),
                        ir::evaluate_real(loop.program, loop.score, at)));
            CHECK(close(ir::evaluate_real(terms.program, terms.d_score, at),
                        ir::evaluate_real(loop.program, loop.d_score, at)));
            const Gradients expected = gradients(terms, at), got = gradients(loop, at);
            for (const auto& [element, value] : expected) {
                const auto found = got.find(element);
                CHECK(close(value, found == got.end() ? 0 : found->second));
            }
            for (const auto& [element, value] : got)
                if (!expected.contains(element)) CHECK(close(0, value));
        }
    }
}

TEST_CASE("a sum is computed where its terms allow, and where all that they share is") {
    const auto place = [](const std::string& term) {
        const passes::Mod mod =
            test::lowered(kDeclarations + ("score_mod = score + sum(i in 0..9: " + term + ")"));
        passes::Place found{};
        for (NodeId id : mod.order)
            if (mod.program.graph[id].op == Op::sum) found = mod.place[id];
        return found;
    };
    CHECK(place("n[i]") == passes::Place::launch);
    CHECK(place("w[h, i]") == passes::Place::head);
    CHECK(place("a[q_idx, i] * w[h, i]") == passes::Place::row);
    CHECK(place("c[i, kv_idx]") == passes::Place::column);
    CHECK(place("c[i, kv_idx] * a[q_idx, i]") == passes::Place::element);
}

TEST_CASE("sums that need no loop have none") {
    const auto formula = [](const std::string& expression) {
        const passes::Mod mod =
            test::lowered(kDeclarations + ("score_mod = score + " + expression), {.head_dim = 64});
        return passes::formula(mod.program, mod.score);
    };
    CHECK(formula("sum(i in 0..20: 0.5)") == "score + 10");
    CHECK(formula("sum(i in 0..D: 1)") == "score + 64");
    CHECK(formula("sum(i in D..60: a[q_idx, i])") == "score");
    CHECK(formula("sum(i in 0..D: a[q_idx, i] * 0.5)") ==
          "score + sum(i in 0..64: a[q_idx, i] * 0.5)");
}

TEST_CASE("a graph with sums inside of sums is refused") {
    ir::Program program;
    ir::Graph& graph = program.graph;
    const NodeId outer = graph.counter(graph.integer(0), graph.integer(9));
    const NodeId inner = graph.counter(graph.integer(0), graph.integer(8));
    const auto message = [&](NodeId root) {
        const std::array roots = {root};
        return ir::verify(program, roots);
    };
    const NodeId both = graph.apply(Op::imul, {outer, inner});
    CHECK(message(both).find("it changes with two counters") != std::string::npos);
    CHECK(message(graph.sum(outer, graph.sum(inner, both))) != "");
    CHECK(message(graph.sum(outer, graph.sum(inner, inner))) == "");
    CHECK(message(graph.sum(graph.integer(3), inner)).find("not over a counter") !=
          std::string::npos);
    CHECK(message(graph.sum(outer, graph.boolean(true))).find("truths") != std::string::npos);
}
