#include "passes/table_gradient.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "analysis/index_form.h"
#include "passes/distance_value.h"
#include "passes/gradient_sum.h"
#include "passes/inside_calls.h"

namespace flexc::passes {

using analysis::Dependence;
using analysis::kPositions;
using ir::NodeId;

namespace {

// Whether the index is computed in 32 bits, or its value fits into 32 bits.
bool is_narrow(const Mod& mod, NodeId index) {
    const analysis::Interval range = mod.ranges.of_node[index];
    return mod.ranges.narrow[index] || (range.low >= INT32_MIN && range.high <= INT32_MAX);
}

// Returns the only number other than 0 that this may be, if it is a constant or a multiple of
// choices between constants.
std::optional<double> value_of_choices(const ir::Graph& graph, NodeId id) {
    constexpr std::size_t kMost = 64; // nodes looked at
    std::optional<double> value;
    std::vector<std::pair<NodeId, double>> pending = {{id, 1}}; // a node, times a number
    for (std::size_t i = 0; i < pending.size(); ++i) {
        if (i == kMost) return {};
        const auto [next, factor] = pending[i];
        const ir::Node& node = graph[next];
        if (node.op == ir::Op::fselect) {
            pending.emplace_back(node.operands[1], factor);
            pending.emplace_back(node.operands[2], factor);
        } else if (node.op == ir::Op::fneg) {
            pending.emplace_back(node.operands[0], -factor);
        } else if (node.op == ir::Op::fmul) {
            const bool is_first = graph[node.operands[0]].op == ir::Op::const_real;
            const ir::Node& constant = graph[node.operands[is_first ? 0 : 1]];
            if (constant.op != ir::Op::const_real) return {};
            pending.emplace_back(node.operands[is_first ? 1 : 0], factor * constant.real);
        } else {
            if (node.op != ir::Op::const_real) return {};
            const double found = factor * node.real;
            if (found == 0) continue;
            if (!std::isfinite(found) || value.value_or(found) != found) return {};
            value = found;
        }
    }
    return value;
}

bool is_separable(const Mod& mod, const analysis::IndexForms& forms, NodeId read) {
    return std::ranges::all_of(mod.program.graph[read].operands, [&](NodeId index) {
        unsigned uses = 0;
        for (const analysis::IndexTerm& term : forms.form(index)) {
            const unsigned of_term = term.uses.bits & kPositions;
            if (of_term == kPositions) return false;
            uses |= of_term;
        }
        // Parts of an index that does not fit into 32 bits cannot be added in 32 bits. An index of
        // one part is clamped to them.
        return uses != kPositions || is_narrow(mod, index);
    });
}

// Whether the read is one for each element, at a place that positions alone decide.
bool has_place(const Mod& mod, NodeId read) {
    return mod.counters[read] == ir::kNoNode && !mod.dependence[read].has(Dependence::score);
}

bool may_be_summed(const Mod& mod, const ReadGradient& gradient) {
    return has_place(mod, gradient.read) &&
           (gradient.sum_factor != ir::kNoNode || constant_factor(mod, gradient));
}

bool is_table_of_elements(const Mod& mod, const ReadGradient& gradient) {
    const CapturedRead* captured = captured_read(mod, gradient.read);
    return captured != nullptr && is_table(*captured) && mod.place[gradient.read] == Place::element;
}

bool may_be_table(const Mod& mod, const ReadGradient& gradient) {
    return is_table_of_elements(mod, gradient) && may_be_summed(mod, gradient);
}

// Whether sums of dS are multiplied by one number for a whole head, if by any.
bool has_factor_of_head(const Mod& mod, const ReadGradient& gradient) {
    return gradient.sum_factor == ir::kNoNode || mod.place[gradient.sum_factor] <= Place::head;
}

// Of tables, and of reads with one entry for each diagonal. weighted: the partial of those that
// elements add other numbers to; kNoNode if none was found yet.
EntrySum entry_sum(const Mod& mod, const ReadGradient& gradient, NodeId weighted) {
    const bool is_distance = mod.place[gradient.read] == Place::element &&
                             static_cast<bool>(mod.of_distance[gradient.read]);
    if (mod.deterministic || !has_place(mod, gradient.read) ||
        (!is_distance && !is_table_of_elements(mod, gradient)))
        return EntrySum::none;
    const bool sums_d_scores = has_factor_of_head(mod, gradient)
                                   ? may_be_summed(mod, gradient)
                                   : constant_factor(mod, gradient).has_value();
    if (sums_d_scores) return EntrySum::d_scores;
    return weighted == ir::kNoNode || gradient.partial == weighted ? EntrySum::weighted
                                                                   : EntrySum::none;
}

// Fills is_separable of gradients that are_summed(gradient).
template <typename AreSummed>
void find_separable(const Mod& mod, std::vector<ReadGradient>& gradients, AreSummed are_summed) {
    std::vector<NodeId> indices;
    for (const ReadGradient& gradient : gradients) {
        const std::vector<NodeId>& operands = mod.program.graph[gradient.read].operands;
        if (std::invoke(are_summed, gradient))
            indices.insert(indices.end(), operands.begin(), operands.end());
    }
    if (indices.empty()) return;
    analysis::IndexForms forms(mod.program.graph, mod.ranges);
    forms.find(indices);
    for (ReadGradient& gradient : gradients)
        gradient.is_separable = std::invoke(are_summed, gradient) &&
                                table_choice(mod, gradient) == ir::kNoNode &&
                                is_separable(mod, forms, gradient.read);
}
// Whether every index of the read that is the same for a whole head is inside of the buffer.
bool has_slice(const Mod& mod, NodeId read) {
    const std::vector<bool>& in_range = mod.ranges.in_range[read];
    const std::vector<NodeId>& indices = mod.program.graph[read].operands;
    for (std::size_t dim = 0; dim < indices.size(); ++dim)
        if ((mod.dependence[indices[dim]].bits & kPositions) == 0 &&
            (dim >= in_range.size() || !in_range[dim]))
            return false;
    return true;
}

// What gradients with the same sums have in common: the entries, and what elements add to these but
// for a factor. Nothing if the gradient shares its sums with no other.
std::vector<std::int64_t> key_of_sums(const Mod& mod, const ReadGradient& gradient) {
    if (!has_slice(mod, gradient.read)) return {};
    std::vector<std::int64_t> key = {static_cast<std::int64_t>(gradient.entry_sum),
                                     table_choice(mod, gradient)};
    for (const std::uint32_t at : varying_dims(mod, gradient.read)) {
        const ir::Dim& extent = mod.program.buffer_of(gradient.read).dims[at];
        const NodeId index = mod.program.graph[gradient.read].operands[at];
        key.insert(key.end(), {index, extent.constant, extent.size});
    }
    return key;
}

void find_separable(Mod& mod) { find_separable(mod, mod.gradients, &ReadGradient::is_of_table); }

} // namespace

std::optional<double> constant_factor(const Mod& mod, const ReadGradient& gradient) {
    if (is_gradient_of_score(mod, gradient)) return 1;
    const ir::Node& d_score = mod.program.graph[mod.d_score];
    const auto partial = value_of_choices(mod.program.graph, gradient.partial);
    if (!partial || d_score.op != ir::Op::const_real ||
        mod.dependence[gradient.partial].has(Dependence::score))
        return {};
    const double factor = *partial / d_score.real;
    return std::isfinite(factor) ? std::optional(factor) : std::nullopt;
}

void find_table_gradients(Mod& mod) {
    NodeId weighted = ir::kNoNode;
    for (ReadGradient& gradient : mod.gradients) {
        gradient.is_of_table = may_be_table(mod, gradient);
        gradient.entry_sum = entry_sum(mod, gradient, weighted);
        if (gradient.entry_sum == EntrySum::weighted) weighted = gradient.partial;
    }
    find_separable(mod);
    mod.tables_take_all =
        !mod.deterministic && std::ranges::any_of(mod.gradients, &ReadGradient::is_of_table) &&
        std::ranges::all_of(mod.gradients, [&](const ReadGradient& gradient) {
            const analysis::KeyUses& uses = mod.key_uses[gradient.read];
            const bool has_key_index_2d = mod.place[gradient.read] == Place::element &&
                                          (uses.quotients != 0 || uses.remainders != 0);
            return gradient.is_of_table || !has_key_index_2d;
        });
}

void join_distances_to_tables(Mod& mod) {
    const auto is_by_distance = [&](const ReadGradient& gradient) {
        return gradient_sum(mod, gradient) == GradientSum::distance;
    };
    const auto is_of_head = [&](const ReadGradient& gradient) {
        return mod.place[gradient.read] <= Place::head;
    };
    const auto can_join = [&](const ReadGradient& gradient) {
        return !is_by_distance(gradient) || is_of_head(gradient) ||
               (gradient.entry_sum == EntrySum::d_scores && has_factor_of_head(mod, gradient));
    };
    if (mod.deterministic || !mod.digit_places.empty() ||
        std::ranges::none_of(mod.gradients, &ReadGradient::is_of_table) ||
        !std::ranges::all_of(mod.gradients, can_join))
        return;
    for (ReadGradient& gradient : mod.gradients) {
        if (!is_by_distance(gradient)) continue;
        // What a head adds up is summed by the warps that have its elements.
        if (is_of_head(gradient))
            gradient.sum_factor = ir::kNoNode;
        else
            gradient.is_of_table = true;
    }
}

void find_weighted_gradients(Mod& mod) {
    const TileSums tile = fused_sums(mod);
    const auto is_of_tile = [&](const ReadGradient& gradient) {
        return is_of_d_scores(gradient_sum(mod, gradient, tile));
    };
    if (!mod.program.is_dense() || mod.deterministic || adds_many_by_element(mod) ||
        std::ranges::any_of(mod.gradients, is_of_tile))
        return;
    NodeId partial = ir::kNoNode;
    bool has_table = false;
    for (ReadGradient& gradient : mod.gradients) {
        const bool is_table = is_table_of_elements(mod, gradient);
        if ((!is_table && !is_of_distance(mod, gradient.read)) || !has_place(mod, gradient.read))
            continue;
        if (partial == ir::kNoNode) partial = gradient.partial;
        gradient.is_weighted = gradient.partial == partial;
        has_table |= is_table && gradient.is_weighted;
    }
    for (ReadGradient& gradient : mod.gradients)
        gradient.is_of_table |= has_table && gradient.is_weighted;
    find_separable(mod);
}

std::vector<ReadGradient> summed_by_entries(const Mod& mod) {
    std::vector<ReadGradient> gradients = mod.gradients;
    for (ReadGradient& gradient : gradients) {
        if (gradient.entry_sum == EntrySum::none) continue;
        gradient.is_weighted = gradient.entry_sum == EntrySum::weighted;
        if (gradient.is_weighted || !has_factor_of_head(mod, gradient))
            gradient.sum_factor = ir::kNoNode;
    }
    find_separable(mod, gradients, [](const ReadGradient& gradient) {
        return gradient.entry_sum != EntrySum::none;
    });
    return gradients;
}

std::vector<std::size_t> first_of_same_sums(const Mod& mod,
                                            const std::vector<ReadGradient>& gradients) {
    std::map<std::vector<std::int64_t>, std::size_t> firsts;
    std::vector<std::size_t> first_of;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        const std::vector<std::int64_t> key = key_of_sums(mod, gradients[i]);
        first_of.push_back(key.empty() ? i : firsts.emplace(key, i).first->second);
    }
    return first_of;
}

double table_factor(const Mod& mod, const ReadGradient& gradient) {
    return gradient.is_weighted ? 1 : constant_factor(mod, gradient).value_or(1);
}

bool has_table_factor(const Mod& mod, const ReadGradient& gradient) {
    return constant_factor(mod, gradient) && table_choice(mod, gradient) == ir::kNoNode;
}

NodeId table_choice(const Mod& mod, const ReadGradient& gradient) {
    if (gradient.choice != ir::kNoNode) return gradient.choice;
    const bool is_choice = gradient.sum_factor == ir::kNoNode && !gradient.is_weighted &&
                           !is_gradient_of_score(mod, gradient) &&
                           mod.program.graph[gradient.partial].op != ir::Op::const_real;
    return is_choice ? gradient.partial : ir::kNoNode;
}

std::vector<std::uint32_t> varying_dims(const Mod& mod, NodeId read) {
    const auto& indices = mod.program.graph[read].operands;
    std::vector<std::uint32_t> dims;
    for (std::uint32_t dim = 0; dim < indices.size(); ++dim)
        if ((mod.dependence[indices[dim]].bits & kPositions) != 0) dims.push_back(dim);
    return dims;
}

EntryCount table_entries(const Mod& mod, const ReadGradient& gradient) {
    constexpr std::int64_t kMost = 1 << 15;
    const ir::Node& read = mod.program.graph[gradient.read];
    std::int64_t entries = 1;
    int sizes = 0, lengths = 0;
    for (const std::uint32_t at : varying_dims(mod, gradient.read)) {
        const ir::Dim& dim = mod.program.buffers[read.symbol].dims[at];
        if (!dim.is_constant()) {
            ++sizes;
            lengths += dim.size == ir::kQLen || dim.size == ir::kKvLen;
            continue;
        }
        if (dim.constant < 1 || dim.constant > kMost) return {};
        entries *= dim.constant;
        if (entries > kMost) return {};
    }
    // No call of usual lengths has few entries for each query and key.
    if (lengths > 1) return {};
    return sizes == 0 ? EntryCount{.known = static_cast<int>(entries)}
                      : EntryCount{.is_bound = true};
}

EntryCount entries_of_elements(const Mod& mod) {
    if (!sums_tables(mod) || weighs_tables(mod) || sums_grids(mod)) return {};
    EntryCount entries;
    bool all_are_separable = true;
    for (const ReadGradient& gradient : mod.gradients) {
        if (gradient_sum(mod, gradient, {.sums_tables = true}) != GradientSum::table) continue;
        const EntryCount of_table = table_entries(mod, gradient);
        if (!of_table.exist()) return {};
        entries.known += of_table.known;
        entries.is_bound = entries.is_bound || of_table.is_bound;
        all_are_separable = all_are_separable && gradient.is_separable;
    }
    return all_are_separable ? EntryCount{} : entries;
}

bool has_sums_beside_entries(const Mod& mod) {
    return std::ranges::any_of(mod.gradients, [&](const ReadGradient& gradient) {
        switch (gradient_sum(mod, gradient, {.sums_tables = true})) {
        case GradientSum::row: return false;
        case GradientSum::head: return mod.dependence[gradient.partial].has(Dependence::score);
        case GradientSum::table: return static_cast<bool>(mod.of_distance[gradient.read]);
        default: return true;
        }
    });
}

std::optional<KindDims> kind_dims(const Mod& mod, const ReadGradient& gradient) {
    // As many kinds as two warps have rows of products for, and columns in registers.
    constexpr std::int64_t kMost = 32;
    const std::vector<std::uint32_t> dims = varying_dims(mod, gradient.read);
    if (!gradient.is_separable || dims.size() != 2) return {};
    const ir::Node& read = mod.program.graph[gradient.read];
    KindDims kinds;
    for (std::size_t i = 0; i < dims.size(); ++i) {
        const ir::Dim& dim = mod.program.buffers[read.symbol].dims[dims[i]];
        const bool is_few = std::ranges::count(mod.few_kinds, gradient.read) != 0;
        const std::int64_t most = dim.is_constant() ? dim.constant : is_few ? kMostBoundKinds : 0;
        if (most < 1 || most > kMost) return {};
        const unsigned uses = mod.dependence[read.operands[dims[i]]].bits & kPositions;
        if (uses == Dependence::q) {
            kinds.query_dim = i;
            kinds.query_kinds = static_cast<int>(most);
        } else if (uses == Dependence::kv) {
            kinds.key_kinds = static_cast<int>(most);
        } else {
            return {};
        }
    }
    if (kinds.query_kinds == 0 || kinds.key_kinds == 0) return {};
    return kinds;
}

NodeId read_by_kinds(const Mod& mod) {
    const auto found = std::ranges::find_if(mod.gradients, [&](const ReadGradient& gradient) {
        return gradient_sum(mod, gradient, {.sums_tables = true}) == GradientSum::table &&
               kind_dims(mod, gradient);
    });
    return found == mod.gradients.end() ? ir::kNoNode : found->read;
}

bool sums_kinds_beside(const Mod& mod) {
    return read_by_kinds(mod) != ir::kNoNode &&
           count_sums_by(mod, GradientSum::table, {.sums_tables = true}) > 1;
}

PositionParts position_parts(const Mod& mod, const std::vector<NodeId>& nodes) {
    PositionParts parts;
    ir::visit_from(mod.program.graph, nodes, [&](NodeId id) {
        const ir::Op op = mod.program.graph[id].op;
        const unsigned uses = mod.dependence[id].bits & kPositions;
        if (uses == 0 || op == ir::Op::q_idx || op == ir::Op::kv_idx) return false;
        if (uses == kPositions || mod.counters[id] != ir::kNoNode) return true;
        (uses == Dependence::q ? parts.query : parts.key).push_back(id);
        return false;
    });
    return parts;
}

} // namespace flexc::passes
