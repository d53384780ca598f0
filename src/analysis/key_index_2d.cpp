#include "analysis/key_index_2d.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace flexc::analysis {

using ir::NodeId;
using ir::Op;

namespace {

// Returns the constant if the node is kv // constant or kv % constant.
std::optional<std::int64_t> divisor(const ir::Graph& graph, NodeId id) {
    const ir::Node& node = graph[id];
    if (node.op != Op::ifloordiv && node.op != Op::imod) return {};
    const ir::Node& by = graph[node.operands[1]];
    if (graph[node.operands[0]].op != Op::kv_idx || by.op != Op::const_int || by.integer < 2)
        return {};
    return by.integer;
}

// The least common multiple; 0 if it exceeds all widths.
std::int64_t multiple(std::int64_t x, std::int64_t y) {
    std::int64_t result = 0;
    return __builtin_mul_overflow(x / std::gcd(x, y), y, &result) ? 0 : result;
}

void join(KeyUses& to, const KeyUses& more) {
    to.others |= more.others;
    to.quotients = std::gcd(to.quotients, more.quotients);
    if (more.remainders == 0) return;
    to.remainders = to.remainders == 0 ? more.remainders : multiple(to.remainders, more.remainders);
    to.others |= to.remainders == 0;
}

// Ascending, each once.
std::vector<std::int64_t> sorted(std::vector<std::int64_t> numbers) {
    std::ranges::sort(numbers);
    const auto again = std::ranges::unique(numbers);
    numbers.erase(again.begin(), again.end());
    return numbers;
}

// Whether every term that uses kv is kv // width, or is kv % width.
bool is_linear_by_key(const ir::Graph& graph, const AffineForm& form, std::int64_t width, Op op) {
    return form.kv == 0 && std::ranges::all_of(form.rest, [&](const AffineForm::Term& term) {
               return !term.uses.has(Dependence::kv) ||
                      (graph[term.node].op == op && divisor(graph, term.node) == width);
           });
}

} // namespace

std::string_view name(KeyUse use) {
    switch (use) {
    case KeyUse::none: return "none";
    case KeyUse::quotient: return "quotient";
    case KeyUse::remainder: return "remainder";
    case KeyUse::other: return "other";
    }
    return "other";
}

KeyUse KeyUses::with(std::int64_t width) const {
    if (others || (quotients != 0 && remainders != 0)) return KeyUse::other;
    // kv // (n * width) is (kv // width) // n, and kv % n is (kv % width) % n where n divides
    // width.
    if (quotients != 0) return quotients % width == 0 ? KeyUse::quotient : KeyUse::other;
    if (remainders != 0) return width % remainders == 0 ? KeyUse::remainder : KeyUse::other;
    return KeyUse::none;
}

std::vector<KeyUses> key_uses(const ir::Graph& graph) {
    std::vector<KeyUses> uses;
    uses.reserve(graph.size());
    extend_key_uses(uses, graph);
    return uses;
}

void extend_key_uses(std::vector<KeyUses>& uses, const ir::Graph& graph) {
    for (auto id = static_cast<NodeId>(uses.size()); id < graph.size(); ++id) {
        const ir::Node& node = graph[id];
        KeyUses all{.others = node.op == Op::kv_idx};
        if (const auto by = divisor(graph, id))
            (node.op == Op::ifloordiv ? all.quotients : all.remainders) = *by;
        else
            for (const NodeId operand : node.operands)
                join(all, uses[operand]);
        uses.push_back(all);
    }
}

bool is_linear_by_column(const ir::Graph& graph, const AffineForm& form, std::int64_t width) {
    return is_linear_by_key(graph, form, width, Op::imod);
}
bool is_linear_by_row(const ir::Graph& graph, const AffineForm& form, std::int64_t width) {
    return is_linear_by_key(graph, form, width, Op::ifloordiv);
}

std::vector<std::int64_t> key_divisors(const ir::Graph& graph, std::span<const NodeId> roots) {
    std::vector<std::int64_t> divisors;
    for (const NodeId id : ir::reachable(graph, roots))
        if (const auto by = divisor(graph, id)) divisors.push_back(*by);
    return sorted(std::move(divisors));
}

std::vector<std::int64_t> key_widths(const ir::Graph& graph, std::span<const NodeId> roots,
                                     const std::function<bool(std::int64_t)>& suits) {
    // With narrower rows, one by one is as good.
    constexpr std::int64_t kNarrowestPart = 16;
    std::vector<std::int64_t> widths;
    for (const std::int64_t divisor : key_divisors(graph, roots)) {
        std::int64_t width = std::min(divisor, kWidest);
        if (divisor > kWidest)
            while (width >= kNarrowestPart && (divisor % width != 0 || !suits(width)))
                --width;
        if (width >= kNarrowestPart || width == divisor) widths.push_back(width);
    }
    return sorted(std::move(widths));
}

} // namespace flexc::analysis
