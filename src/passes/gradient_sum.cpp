#include "passes/gradient_sum.h"

#include <algorithm>

#include "analysis/distance.h"
#include "analysis/key_grid.h"

namespace flexc::passes {

using analysis::Dependence;
using analysis::KeyUse;
using ir::NodeId;
using ir::Op;

namespace {

// Whether d score_mod / d read and d score_mod / d score are the same everywhere.
bool is_gradient_of_score(const Mod& mod, const ReadGradient& gradient) {
    if (gradient.partial == mod.d_score) return true;
    const ir::Node &x = mod.program.graph[gradient.partial], &y = mod.program.graph[mod.d_score];
    return x.op == Op::const_real && y.op == Op::const_real && x.real == y.real;
}

bool is_of_distance(const Mod& mod, NodeId read) {
    if (mod.counters[read] != ir::kNoNode) return false;
    return analysis::is_of_distance(mod.program.graph, mod.dependence, read);
}

// Real reads of single elements that use keys as a grid in one way.
std::vector<NodeId> grid_reads(const Mod& mod, int key_width, KeyUse use) {
    const std::vector<KeyUse> uses = analysis::key_uses(mod.program.graph, key_width);
    std::vector<NodeId> reads;
    for (const NodeId id : mod.order) {
        const ir::Node& node = mod.program.graph[id];
        if (node.op == Op::read && node.type == ir::Type::real && mod.place[id] == Place::element &&
            mod.counters[id] == ir::kNoNode && !mod.dependence[id].has(Dependence::score) &&
            uses[id] == use)
            reads.push_back(id);
    }
    return reads;
}

} // namespace

GradientSum gradient_sum(const Mod& mod, const ReadGradient& gradient, int key_width) {
    switch (mod.place[gradient.read]) {
    case Place::launch:
    case Place::head: return GradientSum::head;
    case Place::row: return GradientSum::query;
    case Place::column: return GradientSum::key;
    case Place::element: break;
    }
    if (!is_gradient_of_score(mod, gradient) ||
        mod.dependence[gradient.read].has(Dependence::score))
        return GradientSum::element;
    if (is_of_distance(mod, gradient.read)) return GradientSum::distance;
    if (key_width == 0) return GradientSum::element;
    const KeyUse use = analysis::key_uses(mod.program.graph, key_width)[gradient.read];
    if (use == KeyUse::quotient) return GradientSum::quotient;
    return use == KeyUse::remainder ? GradientSum::remainder : GradientSum::element;
}

int key_width_of_gradients(const Mod& mod) {
    constexpr std::int64_t kWidest = 128;
    std::vector<NodeId> reads;
    for (const ReadGradient& gradient : mod.gradients)
        reads.push_back(gradient.read);
    int best = 0;
    std::ptrdiff_t most = 0;
    for (const std::int64_t divisor : analysis::key_divisors(mod.program.graph, reads)) {
        if (divisor > kWidest) continue;
        const int width = static_cast<int>(divisor);
        const auto count = std::ranges::count_if(mod.gradients, [&](const ReadGradient& gradient) {
            const GradientSum sum = gradient_sum(mod, gradient, width);
            return sum == GradientSum::quotient || sum == GradientSum::remainder;
        });
        if (count <= most) continue;
        most = count;
        best = width;
    }
    return best;
}

std::vector<NodeId> distance_reads(const Mod& mod) {
    std::vector<NodeId> reads;
    for (const NodeId id : mod.order) {
        const ir::Node& node = mod.program.graph[id];
        if (node.op == Op::read && node.type == ir::Type::real && mod.place[id] == Place::element &&
            is_of_distance(mod, id))
            reads.push_back(id);
    }
    return reads;
}

std::vector<NodeId> row_reads(const Mod& mod, int key_width) {
    return grid_reads(mod, key_width, KeyUse::quotient);
}
std::vector<NodeId> column_reads(const Mod& mod, int key_width) {
    return grid_reads(mod, key_width, KeyUse::remainder);
}

std::string_view name(GradientSum sum) {
    switch (sum) {
    case GradientSum::head: return "head";
    case GradientSum::query: return "query";
    case GradientSum::key: return "key";
    case GradientSum::distance: return "distance";
    case GradientSum::quotient: return "quotient";
    case GradientSum::remainder: return "remainder";
    case GradientSum::element: return "element";
    }
    return "element";
}

std::string_view description(GradientSum sum) {
    switch (sum) {
    case GradientSum::head: return "in registers, once for a head";
    case GradientSum::query: return "over a tile's keys, once for a query";
    case GradientSum::key: return "in registers, once for a key";
    case GradientSum::distance: return "over a tile's diagonals, once for a distance";
    case GradientSum::quotient: return "over a tile's keys, once for a query and row of keys";
    case GradientSum::remainder:
        return "over a tile's rows of keys, once for a query and place in them";
    case GradientSum::element: return "in memory, element by element";
    }
    return "";
}

} // namespace flexc::passes
