#include "passes/gradient_sum.h"

#include <algorithm>

#include "analysis/key_index_2d.h"
#include "passes/dense_bias.h"
#include "passes/distance_value.h"
#include "passes/table_gradient.h"

namespace flexc::passes {

using analysis::AffineForm;
using analysis::Dependence;
using analysis::KeyUse;
using ir::NodeId;
using ir::Op;

namespace {

bool is_dense_bias_gradient(const Mod& mod, const ReadGradient& gradient) {
    return mod.place[gradient.read] == Place::element && is_dense_bias(mod, gradient.read);
}

// Whether warps that sum tables from tiles of dS can add those tiles to the dense bias's gradient,
// which is rounded to 16 bits as dS is.
bool is_narrow_of_scores(const Mod& mod, const ReadGradient& gradient) {
    const ir::Node& read = mod.program.graph[gradient.read];
    return size_of(mod.program.buffers[read.symbol].dtype) == 2 &&
           is_gradient_of_score(mod, gradient) && !weighs_tables(mod) && !mod.deterministic;
}

// Real reads for each element that use the 2-D key index in one way.
std::vector<NodeId> index_2d_reads(const Mod& mod, int key_width, KeyUse use) {
    std::vector<NodeId> reads;
    for (const NodeId id : mod.order) {
        const ir::Node& node = mod.program.graph[id];
        if (node.op == Op::read && node.type == ir::Type::real && mod.place[id] == Place::element &&
            mod.counters[id] == ir::kNoNode && !mod.dependence[id].has(Dependence::score) &&
            mod.key_uses[id].with(key_width) == use)
            reads.push_back(id);
    }
    return reads;
}

// Ignores dense biases. key_width: of the tile's keys as a 2-D index; 0 for none.
GradientSum sum_of(const Mod& mod, const ReadGradient& gradient, int key_width) {
    if (gradient.is_of_row) return GradientSum::row;
    const bool is_by_distance =
        !gradient.is_of_table &&
        (mod.place[gradient.read] != Place::element || mod.of_distance[gradient.read]);
    if (gradient.sum_factor != ir::kNoNode && is_by_distance) return GradientSum::distance;
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
    if (!gradient.is_of_table && mod.program.is_dense() && is_of_distance(mod, gradient.read))
        return GradientSum::distance;
    // As a table, such a read meets few entries, even if many rows of keys share one.
    if (key_width == 0 || mod.tables_take_all) return GradientSum::element;
    const KeyUse use = mod.key_uses[gradient.read].with(key_width);
    if (use == KeyUse::quotient) return GradientSum::quotient;
    return use == KeyUse::remainder ? GradientSum::remainder : GradientSum::element;
}

bool are_equal(const Mod& mod, NodeId a, NodeId b) {
    const ir::Node &x = mod.program.graph[a], &y = mod.program.graph[b];
    return a == b || (x.op == Op::const_real && y.op == Op::const_real && x.real == y.real);
}

// Whether all batch entries of a head add to the same addresses.
bool is_of_batch(const Mod& mod, const ReadGradient& gradient) {
    const Dependence used = mod.dependence[gradient.read];
    return mod.counters[gradient.read] == ir::kNoNode && !used.has(Dependence::b) &&
           !used.has(Dependence::score);
}

// Whether every index of these reads is linear in some way.
template <typename IsLinear>
bool have_linear_indices(const Mod& mod, const std::vector<NodeId>& reads, IsLinear is_linear) {
    return std::ranges::all_of(reads, [&](NodeId read) {
        return std::ranges::all_of(mod.program.graph[read].operands,
                                   [&](NodeId index) { return is_linear(mod.affine[index]); });
    });
}

} // namespace

bool is_gradient_of_score(const Mod& mod, const ReadGradient& gradient) {
    return are_equal(mod, gradient.partial, mod.d_score);
}

GradientSum gradient_sum(const Mod& mod, const ReadGradient& gradient, TileSums tile) {
    if (gradient.element_factor != ir::kNoNode) return GradientSum::terms;
    if (tile.sums_batches && is_of_batch(mod, gradient)) return GradientSum::batch;
    if (tile.sums_few_entries && gradient.entry_sum != EntrySum::none) return GradientSum::table;
    if (tile.sums_grids && gradient.is_of_grid) return GradientSum::distance;
    if (gradient.is_weighted && !gradient.is_of_table)
        return tile.weighs_distances ? GradientSum::distance : GradientSum::element;
    const GradientSum sum = sum_of(mod, gradient, tile.key_width);
    if (sum == GradientSum::element && tile.sums_shifts && gradient.is_shifted)
        return GradientSum::shifted;
    if (sum == GradientSum::element && tile.sums_tables && gradient.is_of_table)
        return GradientSum::table;
    if (sum != GradientSum::element || !is_dense_bias_gradient(mod, gradient)) return sum;
    if (tile.adds_biases_beside && is_narrow_of_scores(mod, gradient))
        return GradientSum::bias_beside;
    // Tiles of a dense bias are added by the warps that would otherwise sum tiles of dS.
    const bool takes_dense_biases =
        mod.program.is_dense() && tile.adds_bias_gradients && tile.key_width == 0 &&
        !mod.deterministic && std::ranges::none_of(mod.gradients, [&](const ReadGradient& other) {
            return other.is_of_table || other.is_weighted ||
                   sum_of(mod, other, 0) == GradientSum::distance;
        });
    if (!takes_dense_biases) return sum;
    // One tile of dS serves all dense biases with the same derivative.
    for (const ReadGradient& first : mod.gradients)
        if (is_dense_bias_gradient(mod, first))
            return gradient.partial == first.partial ? GradientSum::dense_bias : sum;
    return sum;
}

bool is_of_diagonals(const Mod& mod, const ReadGradient& gradient, const TileSums& tile) {
    return !gradient.is_weighted && gradient_sum(mod, gradient, tile) == GradientSum::distance;
}

bool elements_have_partial(const Mod& mod, const ReadGradient& gradient, const TileSums& tile) {
    return mod.counters[gradient.read] == ir::kNoNode && !is_of_diagonals(mod, gradient, tile);
}

bool is_of_terms_by_distance(const Mod& mod, const ReadGradient& gradient) {
    return mod.counters[gradient.read] != ir::kNoNode &&
           gradient_sum(mod, gradient) == GradientSum::distance;
}

bool adds_terms_by_element(const Mod& mod) {
    return std::ranges::any_of(mod.gradients, [&](const ReadGradient& gradient) {
        return mod.counters[gradient.read] != ir::kNoNode &&
               gradient.element_factor == ir::kNoNode && !is_of_terms_by_distance(mod, gradient);
    });
}

bool is_of_d_scores(GradientSum sum) {
    switch (sum) {
    case GradientSum::distance:
    case GradientSum::quotient:
    case GradientSum::remainder:
    case GradientSum::bias_beside:
    case GradientSum::table:
    case GradientSum::shifted: return true;
    case GradientSum::head:
    case GradientSum::batch:
    case GradientSum::query:
    case GradientSum::key:
    case GradientSum::dense_bias:
    case GradientSum::terms:
    case GradientSum::row:
    case GradientSum::element: break;
    }
    return false;
}

int count_sums_by(const Mod& mod, GradientSum sum, TileSums tile) {
    return static_cast<int>(std::ranges::count_if(mod.gradients, [&](const ReadGradient& gradient) {
        return gradient_sum(mod, gradient, tile) == sum;
    }));
}

bool sums_by(const Mod& mod, GradientSum sum, TileSums tile) {
    return count_sums_by(mod, sum, tile) > 0;
}

bool sums_shifts(const Mod& mod) {
    const TileSums tile{.sums_shifts = true};
    return mod.program.is_dense() && !mod.deterministic && !mod.shifted_reads.empty() &&
           index_2d_reads(mod).width == 0 && !sums_by(mod, GradientSum::distance) &&
           !sums_by(mod, GradientSum::dense_bias, tile) && sums_by(mod, GradientSum::shifted, tile);
}

std::string_view why_not_batches(const Mod& mod) {
    if (mod.gradients.empty()) return "";
    if (mod.deterministic) return "blocks add their sums in any order";
    NodeId partial = ir::kNoNode; // that elements add to their sums
    for (const ReadGradient& gradient : mod.gradients) {
        if (mod.counters[gradient.read] != ir::kNoNode)
            return "some gradient is of the terms of a sum";
        if (is_of_batch(mod, gradient)) {
            if (partial == ir::kNoNode) partial = gradient.partial;
            if (!are_equal(mod, gradient.partial, partial))
                return "elements add several numbers to gradients";
        } else if (mod.place[gradient.read] > Place::head) {
            return "the places of some gradient depend on more than h, q_idx and kv_idx";
        }
    }
    return "";
}

int count_few_entries(const Mod& mod) {
    const std::vector<ReadGradient> gradients = summed_by_entries(mod);
    const std::vector<std::size_t> first_of = first_of_same_sums(mod, gradients);
    int sums = 0;
    for (std::size_t i = 0; i < gradients.size(); ++i)
        sums += gradients[i].entry_sum != EntrySum::none && first_of[i] == i;
    return sums;
}

bool weighs_entries(const Mod& mod) {
    return std::ranges::any_of(mod.gradients, [](const ReadGradient& gradient) {
        return gradient.entry_sum == EntrySum::weighted;
    });
}

bool sums_tables(const Mod& mod) {
    return mod.program.is_dense() && !mod.deterministic && !sums_shifts(mod) &&
           index_2d_reads(mod).width == 0 && !sums_by(mod, GradientSum::distance) &&
           sums_by(mod, GradientSum::table, {.sums_tables = true});
}

bool weighs_tables(const Mod& mod) {
    return std::ranges::any_of(mod.gradients, [](const ReadGradient& gradient) {
        return gradient.is_weighted && gradient.is_of_table;
    });
}

bool weighs_distances(const Mod& mod) {
    return std::ranges::any_of(mod.gradients, [](const ReadGradient& gradient) {
        return gradient.is_weighted && !gradient.is_of_table;
    });
}

bool sums_grids(const Mod& mod) {
    return mod.program.is_dense() && !mod.digit_places.empty() && !sums_shifts(mod) &&
           index_2d_reads(mod).width == 0;
}

int key_width_of_gradients(const Mod& mod) {
    if (!mod.program.is_dense()) return 0;
    std::vector<NodeId> reads;
    reads.reserve(mod.gradients.size());
    for (const ReadGradient& gradient : mod.gradients)
        reads.push_back(gradient.read);
    int best = 0;
    std::ptrdiff_t most = 0;
    const auto any = [](std::int64_t) { return true; };
    for (const std::int64_t keys : analysis::key_widths(mod.program.graph, reads, any)) {
        const int width = static_cast<int>(keys);
        const auto count = std::ranges::count_if(mod.gradients, [&](const ReadGradient& gradient) {
            const GradientSum sum = sum_of(mod, gradient, width);
            return sum == GradientSum::quotient || sum == GradientSum::remainder;
        });
        if (count <= most) continue;
        most = count;
        best = width;
    }
    return best;
}

TileSums fused_sums(const Mod& mod) {
    return {.key_width = key_width_of_gradients(mod),
            .sums_tables = sums_tables(mod),
            .adds_biases_beside = sums_tables(mod),
            .sums_grids = sums_grids(mod),
            .sums_shifts = sums_shifts(mod),
            .weighs_distances = weighs_distances(mod)};
}

TileSums usual_sums(const Mod& mod) {
    TileSums tile = fused_sums(mod);
    const bool has_dense_bias =
        dense_bias_of_score(mod) != ir::kNoNode || sums_by(mod, GradientSum::dense_bias);
    tile.key_width = has_dense_bias ? 0 : index_2d_reads(mod).width;
    tile.adds_bias_gradients = !tile.sums_tables && !tile.sums_grids && !tile.sums_shifts;
    return tile;
}

bool adds_many_by_element(const Mod& mod) {
    constexpr int kMost = 2;
    TileSums tile = fused_sums(mod);
    tile.adds_biases_beside = false;
    return count_sums_by(mod, GradientSum::element, tile) > kMost;
}

std::vector<NodeId> row_reads(const Mod& mod, int key_width) {
    return index_2d_reads(mod, key_width, KeyUse::quotient);
}
std::vector<NodeId> column_reads(const Mod& mod, int key_width) {
    return index_2d_reads(mod, key_width, KeyUse::remainder);
}

bool are_columns_linear(const Mod& mod, int key_width) {
    return have_linear_indices(mod, column_reads(mod, key_width), [&](const AffineForm& index) {
        return analysis::is_linear_by_column(mod.program.graph, index, key_width);
    });
}

bool are_queries_linear(const Mod& mod, int key_width) {
    std::vector<NodeId> reads;
    for (const ReadGradient& gradient : mod.gradients) {
        const GradientSum sum = sum_of(mod, gradient, key_width);
        if (sum == GradientSum::quotient || sum == GradientSum::remainder)
            reads.push_back(gradient.read);
    }
    return have_linear_indices(mod, reads, analysis::is_linear_by_query);
}

bool are_reads_linear(const Mod& mod, int key_width) {
    const std::vector<NodeId> rows = row_reads(mod, key_width);
    return are_columns_linear(mod, key_width) &&
           have_linear_indices(mod, rows, analysis::is_linear_by_query) &&
           have_linear_indices(mod, column_reads(mod, key_width), analysis::is_linear_by_query) &&
           have_linear_indices(mod, rows, [&](const AffineForm& index) {
               return analysis::is_linear_by_row(mod.program.graph, index, key_width);
           });
}

std::string_view name(GradientSum sum) {
    switch (sum) {
    case GradientSum::head: return "head";
    case GradientSum::batch: return "batch";
    case GradientSum::query: return "query";
    case GradientSum::key: return "key";
    case GradientSum::distance: return "distance";
    case GradientSum::quotient: return "quotient";
    case GradientSum::remainder: return "remainder";
    case GradientSum::dense_bias: return "dense_bias";
    case GradientSum::bias_beside: return "bias_beside";
    case GradientSum::table: return "table";
    case GradientSum::shifted: return "shifted";
    case GradientSum::terms: return "terms";
    case GradientSum::row: return "row";
    case GradientSum::element: return "element";
    }
    return "element";
}

std::string_view description(const ReadGradient& gradient, GradientSum sum) {
    if (sum == GradientSum::distance && gradient.is_of_grid)
        return "over a tile's diagonals, once for a distance and for what its digits borrow";
    switch (sum) {
    case GradientSum::head: return "in registers, once for a head";
    case GradientSum::batch: return "over sequences of a block, once for an element and head";
    case GradientSum::query: return "over a tile's keys, once for a query";
    case GradientSum::key: return "in registers, once for a key";
    case GradientSum::distance:
        return gradient.is_weighted ? "over the diagonals of a tile of its elements beside that of "
                                      "dS, once for a distance"
                                    : "over a tile's diagonals, once for a distance";
    case GradientSum::quotient: return "over a tile's keys, once for a query and row of keys";
    case GradientSum::remainder:
        return "over a tile's rows of keys, once for a query and place in them";
    case GradientSum::dense_bias: return "in memory, a tile at a time";
    case GradientSum::bias_beside:
        return "in memory, a tile at a time, by the warps that sum tables";
    case GradientSum::table:
        return gradient.is_weighted
                   ? "in a copy of the table on chip, once for an entry and tile, from a tile of "
                     "its elements beside that of dS"
                   : "in a copy of the table on chip, once for an entry and tile";
    case GradientSum::shifted:
        return "in memory, a tile at a time, line by line, and over the part of a line that is "
               "beyond "
               "a clamp";
    case GradientSum::terms: return "over a tile, once for a term";
    case GradientSum::row: return "for a whole row, from the gradient of its lse";
    case GradientSum::element: return "in memory, element by element";
    }
    return "";
}

Index2dReads index_2d_reads(const Mod& mod) {
    Index2dReads reads;
    // Sums by the 2-D key index are computed by the warps that would otherwise sum by distance.
    if (!mod.program.is_dense() || sums_by(mod, GradientSum::distance) || mod.deterministic)
        return reads;
    reads.width = key_width_of_gradients(mod);
    if (reads.width == 0) return reads;
    reads.sums_columns = sums_by(mod, GradientSum::remainder, {.key_width = reads.width});
    reads.sums_are_linear = are_queries_linear(mod, reads.width);
    const std::vector<ir::NodeId> by_column = column_reads(mod, reads.width);
    reads.by_row = static_cast<int>(row_reads(mod, reads.width).size());
    reads.by_column = static_cast<int>(by_column.size());
    for (const ir::NodeId read : by_column) {
        const DType dtype = mod.program.buffers[mod.program.graph[read].symbol].dtype;
        reads.column_bytes = std::max(reads.column_bytes, static_cast<int>(size_of(dtype)));
    }
    return reads;
}

} // namespace flexc::passes
