#include "analysis/index_form.h"

#include <algorithm>
#include <array>

namespace flexc::analysis {

using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

// Limit on differences: three axes need fewer, even if some are written twice.
constexpr std::size_t kMaxDifferences = 8;

bool add_term(IndexForm& form, IndexTerm term) {
    for (auto other = form.begin(); other != form.end(); ++other) {
        if (other->node != term.node || other->coefficient.factors != term.coefficient.factors)
            continue;
        std::int64_t& constant = other->coefficient.constant;
        if (__builtin_add_overflow(constant, term.coefficient.constant, &constant) ||
            constant == INT64_MIN)
            return false;
        if (constant == 0) form.erase(other);
        return true;
    }
    if (term.coefficient.constant != 0) form.push_back(std::move(term));
    return form.size() <= kMaxTerms;
}

// Adds factor * more to the form; false beyond a limit.
bool add_scaled(IndexForm& form, const IndexForm& more, const Product& factor) {
    return std::ranges::all_of(more, [&](const IndexTerm& term) {
        auto coefficient = multiply(term.coefficient, factor);
        return coefficient && add_term(form, {*std::move(coefficient), term.node, term.uses});
    });
}

bool add_difference(Differences& differences, const DigitDifference& more) {
    if (std::ranges::find(differences.used, more) == differences.used.end())
        differences.used.push_back(more);
    return differences.used.size() <= kMaxDifferences;
}

bool join(Differences& to, const Differences& more) {
    return more.only && std::ranges::all_of(more.used, [&](const DigitDifference& difference) {
               return add_difference(to, difference);
           });
}

constexpr Differences kOthers = {.only = false, .used = {}};

// coefficient * digit.
struct DigitTerm {
    Product coefficient;
    Digit digit;
};

bool is_position(const Digit& digit) { return digit.start.is(1) && !digit.end; }

// x // s - m / s * (x // m) is x // s % (m / s): a remainder that is written with a quotient.
std::optional<DigitTerm> remainder(const DigitTerm& whole, const DigitTerm& part) {
    if (whole.digit.end != part.digit.end) return {};
    if (!is_position(whole.digit) && whole.digit.offset != part.digit.offset) return {};
    const auto ratio = quotient(part.digit.start, whole.digit.start);
    if (!ratio || ratio->is(1)) return {};
    const auto taken = multiply(whole.coefficient, *ratio);
    if (!taken || part.coefficient != negative(*taken)) return {};
    DigitTerm result = whole;
    result.digit.offset = part.digit.offset;
    result.digit.end = part.digit.start;
    return result;
}

void merge_remainders(std::vector<DigitTerm>& terms) {
    for (std::size_t i = 0; i < terms.size(); ++i)
        for (std::size_t j = 0; j < terms.size(); ++j) {
            if (i == j) continue;
            auto merged = remainder(terms[i], terms[j]);
            if (!merged) continue;
            terms[i] = *std::move(merged);
            terms.erase(terms.begin() + static_cast<std::ptrdiff_t>(j));
            return merge_remainders(terms);
        }
}

} // namespace

IndexForms::IndexForms(const ir::Graph& graph, const Ranges& ranges, Assumptions assumptions)
    : graph_(graph), ranges_(ranges), assumptions_(std::move(assumptions)) {}

void IndexForms::find(std::span<const NodeId> roots) {
    for (const NodeId id : ir::reachable(graph_, roots)) {
        if (facts_.contains(id)) continue;
        if (graph_[id].op == Op::q_idx) q_ = id;
        if (graph_[id].op == Op::kv_idx) kv_ = id;
        facts_.emplace(id, find(id));
    }
}

IndexForms::Facts IndexForms::find(NodeId id) const {
    const ir::Node& node = graph_[id];
    Facts found;
    found.chosen = id;
    found.truth = find_truth(id);
    if (found.truth) return found;
    if (node.op == Op::iselect || node.op == Op::fselect || node.op == Op::bselect) {
        if (const auto condition = facts(node.operands[0]).truth)
            return facts(node.operands[*condition ? 1 : 2]);
    }
    found.uses = dependence_of_leaf(node.op);
    for (const NodeId operand : node.operands)
        found.uses = found.uses | uses(operand);
    if (node.type == ir::Type::integer) {
        found.affine =
            affine_form(graph_, id, found.uses,
                        [this](NodeId operand) -> const AffineForm& { return affine(operand); });
        found.form = find_form(id, found);
        found.digit = find_digit(id, found);
    }
    found.differences = find_differences(id, found);
    return found;
}

std::optional<bool> IndexForms::find_truth(NodeId id) const {
    const ir::Node& node = graph_[id];
    if (node.type != ir::Type::boolean) return {};
    const auto assumed = std::ranges::find(assumptions_, id, &Assumptions::value_type::first);
    if (assumed != assumptions_.end()) return assumed->second;
    const auto known = [&](std::size_t operand) { return truth(node.operands[operand]); };
    const auto either = [&](bool decides) -> std::optional<bool> {
        const auto x = known(0), y = known(1);
        if (x == decides || y == decides) return decides;
        if (x && y) return !decides;
        return {};
    };
    switch (node.op) {
    case Op::const_bool: return node.integer != 0;
    case Op::band: return either(false);
    case Op::bor: return either(true);
    case Op::bnot:
        if (const auto x = known(0)) return !*x;
        return {};
    case Op::bxor:
        if (const auto x = known(0), y = known(1); x && y) return *x != *y;
        return {};
    case Op::bselect:
        if (const auto condition = known(0)) return known(*condition ? 1 : 2);
        return {};
    default: return {};
    }
}

IndexForm IndexForms::find_form(NodeId id, const Facts& found) const {
    const ir::Node& node = graph_[id];
    const bool free = (found.uses.bits & kInsideHead) == 0;
    const IndexForm whole = {free ? IndexTerm{product_of(graph_, id), kNoNode, {}}
                                  : IndexTerm{{}, id, found.uses}};
    const AffineForm& affine = found.affine;
    IndexForm form;
    const auto add_own = [&] { // of a node that is no sum
        if (!free && node.op == Op::imul)
            for (const std::size_t side : {0u, 1u})
                if (const NodeId factor = node.operands[side]; is_free(factor))
                    return add_scaled(form, this->form(node.operands[1 - side]),
                                      product_of(graph_, factor));
        return add_scaled(form, whole, {});
    };
    const bool fits =
        add_term(form, {{affine.constant, {}}, kNoNode, {}}) &&
        (affine.q == 0 || add_term(form, {{affine.q, {}}, q_, {Dependence::q}})) &&
        (affine.kv == 0 || add_term(form, {{affine.kv, {}}, kv_, {Dependence::kv}})) &&
        std::ranges::all_of(affine.rest, [&](const AffineForm::Term& term) {
            if (term.node == id) return add_own();
            return add_scaled(form, this->form(term.node), {term.coefficient, {}});
        });
    return fits ? form : whole;
}

// Returns a divisor of digits: constants, sizes and parameters.
std::optional<Product> IndexForms::radix(NodeId id) const {
    if (!(uses(id) == Dependence{})) return {};
    Product product = product_of(graph_, id);
    const bool is_positive =
        product.constant >= 1 && std::ranges::all_of(product.factors, [&](NodeId factor) {
            return ranges_.of_node[factor].low >= 1 || graph_[factor].op == Op::param;
        });
    if (!is_positive) return {};
    return product;
}

std::optional<IndexForms::ShiftedDigit> IndexForms::shifted_digit(const AffineForm& form) const {
    AffineForm more = form;
    if (!form.rest_uses(kInsideHead)) {
        if (!is_shifted_position(form)) return {};
        more.q = more.kv = 0;
        Digit position{form.q == 1 ? Op::q_idx : Op::kv_idx, {}, {}, {}};
        return ShiftedDigit{std::move(position), std::move(more)};
    }
    if (form.q != 0 || form.kv != 0) return {};
    const auto uses_position = [](const AffineForm::Term& term) {
        return (term.uses.bits & kInsideHead) != 0;
    };
    const auto term = std::ranges::find_if(more.rest, uses_position);
    if (std::ranges::count_if(more.rest, uses_position) != 1 || term->coefficient != 1) return {};
    const auto& found = digit(term->node);
    if (!found) return {};
    more.rest.erase(term);
    return ShiftedDigit{*found, std::move(more)};
}

std::optional<Digit> IndexForms::find_digit(NodeId id, const Facts& found) const {
    const ir::Node& node = graph_[id];
    const unsigned positions = found.uses.bits & kInsideHead;
    if (positions != Dependence::q && positions != Dependence::kv) return {};
    std::optional<Product> by;
    bool divides = node.op == Op::ifloordiv;
    switch (node.op) {
    case Op::ifloordiv:
    case Op::imod: by = radix(node.operands[1]); break;
    case Op::ishr:
        if (const ir::Node& amount = graph_[node.operands[1]];
            amount.op == Op::const_int && amount.integer > 0 && amount.integer < 62)
            by = Product{std::int64_t{1} << amount.integer, {}};
        divides = true;
        break;
    case Op::iand:
        if (const ir::Node& bits = graph_[node.operands[1]];
            bits.op == Op::const_int && bits.integer > 0 && bits.integer < INT64_MAX &&
            (bits.integer & (bits.integer + 1)) == 0)
            by = Product{bits.integer + 1, {}};
        break;
    default: {
        const bool is_term = found.affine.rest.size() == 1 && found.affine.rest[0].node == id;
        if (is_term) return {};
        const auto same = shifted_digit(found.affine);
        if (!same || same->more != AffineForm{}) return {};
        return same->digit;
    }
    }
    if (!by || by->is(1)) return {};
    const auto of = shifted_digit(affine(node.operands[0]));
    if (!of) return {};
    Digit digit = of->digit;
    const auto point = multiply(digit.start, *by);
    // A digit with an end must contain a whole number of these.
    if (!point || (digit.end && !quotient(*digit.end, *point))) return {};
    const bool has_more = of->more != AffineForm{};
    // x // start + more is (x + more * start) // start, but only without a modulus.
    if (has_more && (!digit.start.factors.empty() || (divides && digit.end))) return {};
    auto offset = sum(digit.offset, of->more, has_more ? digit.start.constant : 1);
    if (!offset) return {};
    digit.offset = *std::move(offset);
    if (!divides) {
        digit.end = *point;
        return digit;
    }
    if (digit.end && *digit.end == *point) return {}; // it is 0
    digit.start = *point;
    return digit;
}

Differences IndexForms::differences_of_sum(const IndexForm& form) const {
    Differences result;
    std::vector<DigitTerm> of_q, of_kv;
    for (const IndexTerm& term : form) {
        if (term.node == kNoNode) continue;
        if (const auto& digit = this->digit(term.node))
            (digit->position == Op::q_idx ? of_q : of_kv).push_back({term.coefficient, *digit});
        else if (!join(result, differences(term.node)))
            return kOthers;
    }
    merge_remainders(of_q);
    merge_remainders(of_kv);
    for (const DigitTerm& q : of_q) {
        const auto kv = std::ranges::find_if(of_kv, [&](const DigitTerm& term) {
            return term.coefficient == negative(q.coefficient) &&
                   term.digit.start == q.digit.start && term.digit.end == q.digit.end;
        });
        if (kv == of_kv.end() ||
            !add_difference(result, {q.digit.start, q.digit.end, q.digit.offset, kv->digit.offset}))
            return kOthers;
        of_kv.erase(kv);
    }
    return of_kv.empty() ? result : kOthers;
}

Differences IndexForms::find_differences(NodeId id, const Facts& found) const {
    const ir::Node& node = graph_[id];
    const unsigned positions = found.uses.bits & kInsideHead;
    if (positions == 0) return {};
    if (positions != kPositions) return kOthers; // one alone, or the score
    const bool is_term =
        found.form.size() == 1 && found.form[0].node == id && found.form[0].coefficient.is(1);
    if (node.type == ir::Type::integer && !is_term) return differences_of_sum(found.form);
    if (ir::info(node.op).compares_integers()) {
        IndexForm difference = form(node.operands[0]);
        if (!add_scaled(difference, form(node.operands[1]), {-1, {}})) return kOthers;
        return differences_of_sum(difference);
    }
    Differences result;
    for (const NodeId operand : node.operands)
        if (!join(result, differences(operand))) return kOthers;
    return result;
}

std::optional<Grid> grid_of(std::span<const DigitDifference> differences) {
    Grid grid;
    bool has_offsets = false, is_open = false;
    std::vector<Product> points;
    const auto add_point = [&](const Product& point) {
        if (std::ranges::find(points, point) == points.end()) points.push_back(point);
    };
    for (const DigitDifference& difference : differences) {
        add_point(difference.start);
        if (difference.end) add_point(*difference.end);
        is_open |= !difference.end;
        if (difference.is_distance()) continue;
        if (has_offsets &&
            (grid.q_offset != difference.q_offset || grid.kv_offset != difference.kv_offset))
            return {};
        has_offsets = true;
        grid.q_offset = difference.q_offset;
        grid.kv_offset = difference.kv_offset;
    }
    // Each point must divide those after it.
    for (auto first = points.begin(); first != points.end(); ++first) {
        const auto divides_rest = [&](const Product& point) {
            return std::all_of(first, points.end(), [&](const Product& other) {
                return quotient(other, point).has_value();
            });
        };
        const auto least = std::find_if(first, points.end(), divides_rest);
        if (least == points.end()) return {};
        std::iter_swap(first, least);
    }
    const auto place = [&](const Product& point) {
        return std::ranges::find(points, point) - points.begin();
    };
    const auto end_of = [&](const DigitDifference& difference) {
        return difference.end ? place(*difference.end) : std::ssize(points);
    };
    const std::ptrdiff_t count = std::ssize(points) - (is_open ? 0 : 1);
    for (std::ptrdiff_t i = 0; i < count; ++i) {
        const bool is_used =
            std::ranges::any_of(differences, [&](const DigitDifference& difference) {
                return place(difference.start) <= i && end_of(difference) > i;
            });
        if (!is_used) continue;
        Grid::Axis axis{points[static_cast<std::size_t>(i)], {}};
        if (i + 1 < std::ssize(points)) axis.end = points[static_cast<std::size_t>(i + 1)];
        grid.axes.push_back(std::move(axis));
    }
    return grid;
}

} // namespace flexc::analysis
