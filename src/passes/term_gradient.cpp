#include "passes/term_gradient.h"

#include <algorithm>
#include <iterator>

#include "passes/facts.h"
#include "passes/hoist.h"
#include "passes/simplify.h"

namespace flexc::passes {

using analysis::Dependence;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

// A node as of_head * of_element, where of_head is one number for a head and term.
struct Factors {
    NodeId of_head, of_element;
};

class Factoring {
  public:
    explicit Factoring(Mod& mod) : mod_(mod), build_(mod.program.graph), one_(build_.real(1)) {}

    Factors of(NodeId id) {
        if (is_of_head(id)) return {id, one_};
        const ir::Node node = build_[id];
        switch (node.op) {
        case Op::fneg: {
            const Factors x = of(node.operands[0]);
            return {build_.apply(Op::fneg, {x.of_head}), x.of_element};
        }
        case Op::fmul: {
            const Factors x = of(node.operands[0]), y = of(node.operands[1]);
            return {build_.apply(Op::fmul, {x.of_head, y.of_head}),
                    build_.apply(Op::fmul, {x.of_element, y.of_element})};
        }
        case Op::fdiv: {
            const Factors x = of(node.operands[0]);
            if (is_of_head(node.operands[1]))
                return {build_.apply(Op::fdiv, {x.of_head, node.operands[1]}), x.of_element};
            return {x.of_head, build_.apply(Op::fdiv, {x.of_element, node.operands[1]})};
        }
        case Op::fselect: return of_choice(node);
        default: return {one_, id};
        }
    }

  private:
    // A choice between a number and zero.
    Factors of_choice(const ir::Node& node) {
        std::vector<NodeId> operands = node.operands;
        const std::size_t chosen = build_.is_real(operands[1], 0) ? 2 : 1;
        if (!build_.is_real(operands[3 - chosen], 0))
            return {one_, build_.apply(Op::fselect, std::move(operands))};
        const Factors factors = of(operands[chosen]);
        operands[chosen] = factors.of_element;
        return {factors.of_head, build_.apply(Op::fselect, std::move(operands))};
    }
    // Only of nodes that the mod had before: facts of others are not known.
    bool is_of_head(NodeId id) const {
        return (mod_.dependence[id].bits & analysis::kInsideHead) == 0;
    }

    Mod& mod_;
    Builder build_;
    NodeId one_;
};

} // namespace

void find_term_gradients(Mod& mod) {
    if (!mod.program.is_dense()) return;
    const std::size_t known = mod.program.graph.size();
    for (ReadGradient& gradient : mod.gradients) {
        if (mod.counters[gradient.read] == kNoNode || gradient.sum_factor != kNoNode ||
            mod.dependence[gradient.read].has(Dependence::score))
            continue;
        const Factors factors = Factoring(mod).of(gradient.partial);
        gradient.head_factor = factors.of_head;
        gradient.element_factor = factors.of_element;
    }
    find_facts_since(mod, known);
}

std::vector<ReadGradient> terms_by_tile(const Mod& mod) {
    std::vector<ReadGradient> terms;
    std::ranges::copy_if(
        mod.gradients, std::back_inserter(terms),
        [](const ReadGradient& gradient) { return gradient.element_factor != kNoNode; });
    return terms;
}

std::vector<ReadGradient> terms_by_generic_tile(const Mod& mod) {
    std::vector<ReadGradient> terms;
    for (ReadGradient gradient : mod.gradients) {
        if (mod.counters[gradient.read] == kNoNode || is_term_by_element(mod, gradient)) continue;
        if (gradient.element_factor == kNoNode) gradient.element_factor = gradient.partial;
        terms.push_back(gradient);
    }
    return terms;
}

bool is_term_by_element(const Mod& mod, const ReadGradient& gradient) {
    return mod.counters[gradient.read] != kNoNode &&
           mod.dependence[gradient.read].has(Dependence::score);
}

Place place_of_term(const Mod& mod, NodeId read) { return place_of(mod.dependence[read]); }

int count_terms(const Mod& mod, NodeId counter) {
    constexpr std::int64_t kMost = 1024; // more have no room in shared memory
    const ir::Graph& graph = mod.program.graph;
    const ir::Node &first = graph[graph[counter].operands[0]],
                   &end = graph[graph[counter].operands[1]];
    if (first.op != Op::const_int || end.op != Op::const_int || end.integer - first.integer > kMost)
        return 0;
    return static_cast<int>(end.integer - first.integer);
}

TermReads count_term_reads(const Mod& mod, const std::vector<ReadGradient>& terms) {
    TermReads reads;
    for (const ReadGradient& gradient : terms) {
        const int count = count_terms(mod, mod.counters[gradient.read]);
        if (count == 0) return {};
        const Place place = place_of_term(mod, gradient.read);
        if (place <= Place::head) reads.of_heads += count;
        if (place == Place::column) reads.of_keys += count;
    }
    return reads;
}

} // namespace flexc::passes
