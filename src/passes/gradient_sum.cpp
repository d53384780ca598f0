#include "passes/gradient_sum.h"

#include <algorithm>

#include "analysis/distance.h"
#include "analysis/key_grid.h"
#include "passes/matrix_read.h"

namespace flexc::passes {

using analysis::Dependence;
using analysis::KeyUse;
using ir::NodeId;
using ir::Op;

namespace {

bool is_of_distance(const Mod& mod, NodeId read) {
    if (mod.counters[read] != ir::kNoNode) return false;
    return analysis::is_of_distance(mod.program.graph, mod.dependence, read);
}

bool is_matrix_gradient(const Mod& mod, const ReadGradient& gradient) {
    return mod.place[gradient.read] == Place::element && is_matrix_read(mod, gradient.read);
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

// Without regard to matrices.
GradientSum sum_of(const Mod& mod, const ReadGradient& gradient, TileSums tile) {
    if (gradient.is_of_row) return GradientSum::row;
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
    if (tile.key_width == 0) return GradientSum::element;
    const KeyUse use = analysis::key_uses(mod.program.graph, tile.key_width)[gradient.read];
    if (use == KeyUse::quotient) return GradientSum::quotient;
    return use == KeyUse::remainder ? GradientSum::remainder : GradientSum::element;
}

// Whether every index of these reads is linear in some way.
template <typename IsLinear>
bool have_linear_indices(const ir::Graph& graph, const std::vector<NodeId>& reads,
                         IsLinear is_linear) {
    return std::ranges::all_of(
        reads, [&](NodeId read) { return std::ranges::all_of(graph[read].operands, is_linear); });
}

} // namespace

bool is_gradient_of_score(const Mod& mod, const ReadGradient& gradient) {
    if (gradient.partial == mod.d_score) return true;
    const ir::Node &x = mod.program.graph[gradient.partial], &y = mod.program.graph[mod.d_score];
    return x.op == Op::const_real && y.op == Op::const_real && x.real == y.real;
}

GradientSum gradient_sum(const Mod& mod, const ReadGradient& gradient, TileSums tile) {
    const GradientSum sum = sum_of(mod, gradient, tile);
    // The warps that add tiles of a matrix are those that sum tiles of dS elsewhere.
    const bool takes_matrices = tile.adds_matrices && tile.key_width == 0 && !mod.deterministic &&
                                std::ranges::none_of(mod.gradients, [&](const ReadGradient& other) {
                                    return sum_of(mod, other, {}) == GradientSum::distance;
                                });
    if (sum != GradientSum::element || !takes_matrices) return sum;
    // One tile serves all matrices with the same derivative.
    for (const ReadGradient& first : mod.gradients)
        if (is_matrix_gradient(mod, first))
            return is_matrix_gradient(mod, gradient) && gradient.partial == first.partial
                       ? GradientSum::matrix
                       : sum;
    return sum;
}

int count_sums_by(const Mod& mod, GradientSum sum, TileSums tile) {
    return static_cast<int>(std::ranges::count_if(mod.gradients, [&](const ReadGradient& gradient) {
        return gradient_sum(mod, gradient, tile) == sum;
    }));
}

bool sums_by(const Mod& mod, GradientSum sum, TileSums tile) {
    return count_sums_by(mod, sum, tile) > 0;
}

int key_width_of_gradients(const Mod& mod) {
    constexpr std::int64_t kWidest = 128;
    std::vector<NodeId> reads;
    reads.reserve(mod.gradients.size());
    for (const ReadGradient& gradient : mod.gradients)
        reads.push_back(gradient.read);
    int best = 0;
    std::ptrdiff_t most = 0;
    for (const std::int64_t divisor : analysis::key_divisors(mod.program.graph, reads)) {
        if (divisor > kWidest) continue;
        const int width = static_cast<int>(divisor);
        const auto count = std::ranges::count_if(mod.gradients, [&](const ReadGradient& gradient) {
            const GradientSum sum = sum_of(mod, gradient, {.key_width = width});
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

bool are_columns_linear(const Mod& mod, int key_width) {
    const ir::Graph& graph = mod.program.graph;
    return have_linear_indices(graph, column_reads(mod, key_width), [&](NodeId index) {
        return analysis::is_linear_by_column(graph, index, key_width);
    });
}

bool are_queries_linear(const Mod& mod, int key_width) {
    const ir::Graph& graph = mod.program.graph;
    std::vector<NodeId> reads;
    for (const ReadGradient& gradient : mod.gradients) {
        const GradientSum sum = sum_of(mod, gradient, {.key_width = key_width});
        if (sum == GradientSum::quotient || sum == GradientSum::remainder)
            reads.push_back(gradient.read);
    }
    return have_linear_indices(
        graph, reads, [&](NodeId index) { return analysis::is_linear_by_query(graph, index); });
}

bool are_reads_linear(const Mod& mod, int key_width) {
    const ir::Graph& graph = mod.program.graph;
    const auto by_query = [&](NodeId index) { return analysis::is_linear_by_query(graph, index); };
    const std::vector<NodeId> rows = row_reads(mod, key_width);
    return are_columns_linear(mod, key_width) && have_linear_indices(graph, rows, by_query) &&
           have_linear_indices(graph, column_reads(mod, key_width), by_query) &&
           have_linear_indices(graph, rows, [&](NodeId index) {
               return analysis::is_linear_by_row(graph, index, key_width);
           });
}

std::string_view name(GradientSum sum) {
    switch (sum) {
    case GradientSum::head: return "head";
    case GradientSum::query: return "query";
    case GradientSum::key: return "key";
    case GradientSum::distance: return "distance";
    case GradientSum::quotient: return "quotient";
    case GradientSum::remainder: return "remainder";
    case GradientSum::matrix: return "matrix";
    case GradientSum::row: return "row";
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
    case GradientSum::matrix: return "in memory, a tile at a time";
    case GradientSum::row: return "for a whole row, from the gradient of its lse";
    case GradientSum::element: return "in memory, element by element";
    }
    return "";
}

} // namespace flexc::passes
