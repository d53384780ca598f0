#include "analysis/affine.h"

#include <algorithm>
#include <cstdlib>

namespace flexc::analysis {

using ir::NodeId;
using ir::Op;

namespace {

bool add_scaled(std::int64_t& target, std::int64_t value, std::int64_t factor) {
    std::int64_t product = 0;
    return !__builtin_mul_overflow(value, factor, &product) &&
           !__builtin_add_overflow(target, product, &target) && target >= -kMaxCoefficient &&
           target <= kMaxCoefficient;
}

// Computes x + factor * y; both are sorted by node. False beyond a limit.
bool add_scaled(std::vector<AffineForm::Term>& x, const std::vector<AffineForm::Term>& y,
                std::int64_t factor) {
    std::vector<AffineForm::Term> all;
    all.reserve(x.size() + y.size());
    auto of_x = x.begin();
    for (AffineForm::Term term : y) {
        while (of_x != x.end() && of_x->node < term.node)
            all.push_back(*of_x++);
        std::int64_t coefficient =
            of_x != x.end() && of_x->node == term.node ? (of_x++)->coefficient : 0;
        if (!add_scaled(coefficient, term.coefficient, factor)) return false;
        term.coefficient = coefficient;
        if (coefficient != 0) all.push_back(term);
    }
    all.insert(all.end(), of_x, x.end());
    x = std::move(all);
    return x.size() <= kMaxTerms;
}

// The form of a node that combines its operands' forms; nothing for a node that is a term.
std::optional<AffineForm> combined(const ir::Node& node,
                                   const std::function<const AffineForm&(NodeId)>& form_of) {
    const auto form = [&](std::size_t operand) -> const AffineForm& {
        return form_of(node.operands[operand]);
    };
    switch (node.op) {
    case Op::const_int: {
        AffineForm result;
        if (!add_scaled(result.constant, node.integer, 1)) return {};
        return result;
    }
    case Op::q_idx: return AffineForm{.q = 1};
    case Op::kv_idx: return AffineForm{.kv = 1};
    case Op::iadd: return sum(form(0), form(1));
    case Op::isub: return sum(form(0), form(1), -1);
    case Op::ineg: return sum({}, form(0), -1);
    case Op::imul:
        if (form(0).is_constant()) return sum({}, form(1), form(0).constant);
        if (form(1).is_constant()) return sum({}, form(0), form(1).constant);
        return {};
    default: return {};
    }
}

} // namespace

bool AffineForm::rest_uses(unsigned bits) const {
    return std::ranges::any_of(rest,
                               [bits](const Term& term) { return (term.uses.bits & bits) != 0; });
}

std::optional<AffineForm> sum(const AffineForm& x, const AffineForm& y, std::int64_t factor) {
    AffineForm result = x;
    if (add_scaled(result.q, y.q, factor) && add_scaled(result.kv, y.kv, factor) &&
        add_scaled(result.constant, y.constant, factor) && add_scaled(result.rest, y.rest, factor))
        return result;
    return {};
}

AffineForm affine_form(const ir::Graph& graph, NodeId id, Dependence uses,
                       const std::function<const AffineForm&(NodeId)>& form) {
    if (auto found = combined(graph[id], form)) return *std::move(found);
    return {.rest = {{id, uses, 1}}};
}

std::vector<AffineForm> affine_forms(const ir::Graph& graph,
                                     const std::vector<Dependence>& dependence) {
    std::vector<AffineForm> forms;
    forms.reserve(graph.size());
    extend_affine_forms(forms, graph, dependence);
    return forms;
}

void extend_affine_forms(std::vector<AffineForm>& forms, const ir::Graph& graph,
                         const std::vector<Dependence>& dependence) {
    const auto known = [&](NodeId id) -> const AffineForm& { return forms[id]; };
    for (auto id = static_cast<NodeId>(forms.size()); id < graph.size(); ++id)
        forms.push_back(graph[id].type == ir::Type::integer
                            ? affine_form(graph, id, dependence[id], known)
                            : AffineForm{});
}

std::optional<std::int64_t> slope_in_kv(const AffineForm& form) {
    constexpr std::int64_t kGreatest = 1 << 20;
    if (form.rest_uses(Dependence::kv | Dependence::score) || std::abs(form.kv) > kGreatest)
        return {};
    return form.kv;
}

bool is_shifted_position(const AffineForm& form) {
    return form.q + form.kv == 1 && form.q * form.kv == 0 && !form.rest_uses(kPositions);
}

} // namespace flexc::analysis
