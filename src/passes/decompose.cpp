#include "passes/decompose.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "analysis/distance.h"
#include "analysis/key_index_2d.h"
#include "passes/dense_bias.h"
#include "passes/facts.h"
#include "passes/simplify.h"

namespace flexc::passes {

namespace {

using analysis::Dependence;
using analysis::KeyUse;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

// Limits on the nodes visited, as shared expressions are walked once for each use, and on how deep
// they are nested, so that a program of one long chain needs little stack. Beyond these a score is
// not decomposed.
constexpr int kMaxWork = 2000, kMaxDepth = 400;

class Decomposer {
  public:
    Decomposer(const Mod& mod, ir::Graph& graph, int key_width)
        : build_(graph), key_width_(key_width), is_dense_(mod.program.is_dense()),
          dependence_(mod.dependence), affine_(mod.affine), of_distance_(mod.of_distance),
          key_uses_(mod.key_uses) {}

    ScoreParts decompose(NodeId score) {
        ScoreParts parts;
        if (auto capped = capped_operand(score)) {
            parts.cap = capped->cap;
            score = capped->inside;
        }
        const std::optional<Line> line = line_in(Dependence::score, score);
        if (!line || line->slope == kNoNode || uses(line->slope, Dependence::kv)) return {};
        for (const NodeId addend : line->addends)
            sort(addend, parts);
        if (work_ > kMaxWork) return {};
        parts.multiplier = line->slope;
        return parts;
    }

  private:
    // slope * variable + addends; all are reals.
    struct Line {
        NodeId slope = kNoNode; // kNoNode: 0
        std::vector<NodeId> addends;
    };
    struct Capped {
        NodeId cap, inside;
    };

    // A call that calls itself.
    class Level {
      public:
        explicit Level(Decomposer& of) : of_(of) { ++of_.depth_; }
        ~Level() { --of_.depth_; }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;

      private:
        Decomposer& of_;
    };
    bool goes_on() {
        if (depth_ > kMaxDepth) work_ = kMaxWork;
        return ++work_ <= kMaxWork;
    }

    const ir::Node& node(NodeId id) const { return build_[id]; }
    // Extends the facts to nodes that were made here.
    void find_facts() {
        const ir::Graph& graph = build_.graph();
        if (dependence_.size() == graph.size()) return;
        analysis::extend_dependences(dependence_, graph);
        analysis::extend_affine_forms(affine_, graph, dependence_);
        analysis::extend_of_distance(of_distance_, graph, dependence_, affine_);
        analysis::extend_key_uses(key_uses_, graph);
    }
    bool uses(NodeId id, Dependence::Bit bit) {
        find_facts();
        return dependence_[id].has(bit);
    }
    bool is_of_head(NodeId id) {
        return !uses(id, Dependence::q) && !uses(id, Dependence::kv) &&
               !uses(id, Dependence::score);
    }

    std::optional<Capped> capped_operand(NodeId score) {
        if (node(score).op == Op::tanh) return Capped{build_.real(1), node(score).operands[0]};
        if (node(score).op != Op::fmul) return {};
        for (const std::size_t side : {0u, 1u}) {
            const NodeId tanh = node(score).operands[side], cap = node(score).operands[1 - side];
            if (node(tanh).op == Op::tanh && is_of_head(cap))
                return Capped{cap, node(tanh).operands[0]};
        }
        return {};
    }

    NodeId sum(NodeId x, NodeId y) {
        if (x == kNoNode) return y;
        return y == kNoNode ? x : build_.apply(Op::fadd, {x, y});
    }
    NodeId negative(NodeId x) { return x == kNoNode ? x : build_.apply(Op::fneg, {x}); }

    std::optional<Line> mapped(std::optional<Line> x, Op op, NodeId by) {
        if (!x) return {};
        if (x->slope != kNoNode) x->slope = build_.apply(op, {x->slope, by});
        for (NodeId& addend : x->addends)
            addend = build_.apply(op, {addend, by});
        return x;
    }
    std::optional<Line> added(std::optional<Line> x, const std::optional<Line>& y, bool subtract) {
        if (!x || !y) return {};
        x->slope = sum(x->slope, subtract ? negative(y->slope) : y->slope);
        for (const NodeId addend : y->addends)
            x->addends.push_back(subtract ? negative(addend) : addend);
        return x;
    }

    // Writes a real as a line in the score or in kv. For kv, the addends are left out.
    std::optional<Line> line_in(Dependence::Bit variable, NodeId id) {
        const Level level(*this);
        if (!goes_on()) return {};
        if (!uses(id, variable))
            return variable == Dependence::score ? Line{kNoNode, {id}} : Line{};
        const std::vector<NodeId> operands = node(id).operands; // the graph may grow
        const auto line = [&](std::size_t operand) { return line_in(variable, operands[operand]); };
        const auto scaled = [&]() -> std::optional<Line> {
            const std::size_t factor = uses(operands[0], variable) ? 1 : 0;
            if (uses(operands[factor], variable)) return {};
            return mapped(line(1 - factor), Op::fmul, operands[factor]);
        };
        const auto both = [&](bool subtract) {
            const auto x = line(0), y = line(1);
            return added(x, y, subtract);
        };
        switch (node(id).op) {
        case Op::score: return Line{build_.real(1), {}};
        case Op::int_to_real: return line_of_integer(operands[0]);
        case Op::fadd: return both(false);
        case Op::fsub: return both(true);
        case Op::fneg: return added(Line{}, line(0), true);
        case Op::fmul: return scaled();
        case Op::fma: {
            const auto product = scaled();
            return added(product, line(2), false);
        }
        case Op::fdiv:
            if (uses(operands[1], variable)) return {};
            return mapped(line(0), Op::fdiv, operands[1]);
        default: return {};
        }
    }
    // An integer as a line in kv. An integer that depends on the score is none.
    std::optional<Line> line_of_integer(NodeId id) {
        const auto slope = analysis::slope_in_kv(affine_[id]);
        if (!slope) return {};
        return Line{build_.real(static_cast<double>(*slope)), {}};
    }

    // Returns the increase of a real value from one key to the next if it is the same for all keys;
    // the slope is kNoNode if it is 0.
    std::optional<NodeId> slope(NodeId id) {
        const auto line = line_in(Dependence::kv, id);
        return line ? std::optional(line->slope) : std::nullopt;
    }

    // Adds an addend to the parts. A sum is split only if it is not affine in kv as a whole.
    void sort(NodeId addend, ScoreParts& parts) {
        const Level level(*this);
        if (!goes_on()) return;
        if (const auto gain = slope(addend)) {
            parts.row_addend = sum(parts.row_addend, addend);
            parts.slope = sum(parts.slope, *gain);
            return;
        }
        if (NodeId* const early = tabulated_part(addend, parts)) {
            *early = sum(*early, addend);
        } else if (NodeId* const part = part_of_index_2d(addend, parts)) {
            *part = sum(*part, addend);
        } else if (const auto both = terms(addend)) {
            sort(both->first, parts);
            sort(both->second, parts);
        } else {
            parts.element_addend = sum(parts.element_addend, addend);
        }
    }

    // The part for addends that are the same for all queries, or along diagonals; null for other
    // addends.
    NodeId* tabulated_part(NodeId addend, ScoreParts& parts) {
        if (!is_dense_) return nullptr;
        if (!uses(addend, Dependence::q)) return &parts.key_addend;
        return of_distance_[addend] ? &parts.distance_addend : nullptr;
    }

    // The part for addends that depend on the row alone, or the column alone, of the 2-D key index;
    // null for other addends.
    NodeId* part_of_index_2d(NodeId addend, ScoreParts& parts) {
        if (key_width_ == 0) return nullptr;
        find_facts();
        const KeyUse use = key_uses_[addend].with(key_width_);
        if (use == KeyUse::quotient) return &parts.quotient_addend;
        return use == KeyUse::remainder ? &parts.remainder_addend : nullptr;
    }

    // Returns two nodes whose sum is this node. With a 2-D key index, factors are distributed over
    // sums too, so that each term can go to its own part.
    std::optional<std::pair<NodeId, NodeId>> terms(NodeId id) {
        const Level level(*this);
        if (!goes_on()) return {};
        const Op op = node(id).op;
        const std::vector<NodeId> operands = node(id).operands; // the graph may grow
        if (op == Op::fadd) return std::pair{operands[0], operands[1]};
        if (op == Op::fsub) return std::pair{operands[0], negative(operands[1])};
        if (key_width_ == 0) return {};
        const auto mapped = [&](NodeId sum, auto map) {
            auto both = terms(sum);
            if (both) both = std::pair{map(both->first), map(both->second)};
            return both;
        };
        switch (op) {
        case Op::iadd: return std::pair{operands[0], operands[1]};
        case Op::isub: return std::pair{operands[0], build_.apply(Op::ineg, {operands[1]})};
        case Op::fneg:
        case Op::ineg:
        case Op::int_to_real:
            return mapped(operands[0], [&](NodeId x) { return build_.apply(op, {x}); });
        case Op::fmul:
        case Op::imul:
            for (const std::size_t side : {0u, 1u})
                if (const NodeId factor = operands[1 - side]; !uses(factor, Dependence::kv))
                    return mapped(operands[side],
                                  [&](NodeId x) { return build_.apply(op, {x, factor}); });
            return {};
        case Op::fdiv:
            if (uses(operands[1], Dependence::kv)) return {};
            return mapped(operands[0],
                          [&](NodeId x) { return build_.apply(op, {x, operands[1]}); });
        default: return {};
        }
    }

    Builder build_;
    const int key_width_;
    const bool is_dense_;
    // Facts of all nodes, extended on demand.
    std::vector<Dependence> dependence_;
    std::vector<analysis::AffineForm> affine_;
    std::vector<bool> of_distance_;
    std::vector<analysis::KeyUses> key_uses_;
    int work_ = 0, depth_ = 0;
};

ir::NodeId find_bias_read(const Mod& mod, NodeId addend) {
    if (addend == kNoNode) return kNoNode;
    const std::vector<NodeId> roots = {addend};
    // Biases that depend on keys alone are computed before the kernel, so they are not copied.
    for (const NodeId id : ir::reachable(mod.program.graph, roots))
        if (mod.dependence[id].has(Dependence::q) && is_dense_bias(mod, id)) return id;
    return kNoNode;
}

void find_bias(Mod& mod, ScoreParts& parts) {
    const NodeId root = of_elements(mod, parts);
    parts.bias_read = find_bias_read(mod, root);
    if (parts.bias_read == kNoNode) return;
    parts.bias_band = band_of_use(mod.program.graph, root, parts.bias_read);
    if (parts.bias_band.found()) find_facts(mod);
}

// Limit on vectors by distance: each takes shared memory, and a load for every element.
constexpr std::size_t kMostByDistance = 3;

class TabulatedFinder {
  public:
    TabulatedFinder(const Mod& mod, ScoreParts& parts, std::size_t most_by_key)
        : mod_(mod), parts_(parts), most_by_key_(most_by_key), seen_(mod.program.graph.size()) {}

    void visit(NodeId id) {
        // Values that change with the counter of a sum are computed in its loop.
        if (seen_[id] || mod_.counters[id] != kNoNode) return;
        seen_[id] = true;
        const Dependence uses = mod_.dependence[id];
        if (!uses.has(Dependence::kv)) return;
        if (!uses.has(Dependence::q) && !uses.has(Dependence::score))
            take(id, parts_.key_values, most_by_key_);
        else if (mod_.of_distance[id])
            take(id, parts_.distance_values, kMostByDistance);
        else
            visit_operands(id);
    }

  private:
    void visit_operands(NodeId id) {
        // Elements of copied tiles are found without computing indices.
        if (std::ranges::find(parts_.shifted, id, &ShiftedRead::read) != parts_.shifted.end())
            return;
        const std::vector<StagedTable>& tables = parts_.staged.tables;
        const auto table = std::ranges::find(tables, id, &StagedTable::read);
        if (table == tables.end()) {
            for (const NodeId operand : mod_.program.graph[id].operands)
                visit(operand);
            return;
        }
        if (parts_.aligns_tables) return;
        if (const NodeId key = table->key_bytes; key != kNoNode) {
            // If the key's part is cheap apart from a read in it, only the read is tabulated.
            const NodeId read = only_read(key);
            if (read != kNoNode) visit(read);
            if (read == kNoNode || is_dear(key, read)) visit(key);
        }
        if (table->split.parts.rest != kNoNode) visit(table->split.parts.rest);
    }
    // Returns the only read in the expression; kNoNode if there are none or several.
    NodeId only_read(NodeId id) const {
        NodeId read = kNoNode;
        for (const NodeId part : ir::reachable(mod_.program.graph, std::span(&id, 1))) {
            if (mod_.program.graph[part].op != Op::read) continue;
            if (read != kNoNode) return kNoNode;
            read = part;
        }
        return read;
    }
    void take(NodeId id, std::vector<NodeId>& values, std::size_t most) const {
        if (values.size() < most && fits_word(id) && is_dear(id)) values.push_back(id);
    }
    bool fits_word(NodeId id) const {
        const ir::Node& node = mod_.program.graph[id];
        if (node.type != ir::Type::integer || id >= parts_.staged.first_node) return true;
        return node.op == Op::read && mod_.program.buffers[node.symbol].dtype != DType::i64;
    }
    // Whether computing the value costs more than reading it from shared memory. `known` counts as
    // free.
    bool is_dear(NodeId id, NodeId known = kNoNode) const {
        constexpr int kCheapOperations = 3;
        int operations = 0;
        for (const NodeId part : ir::reachable(mod_.program.graph, std::span(&id, 1))) {
            if (part == known) continue;
            const Op op = mod_.program.graph[part].op;
            if (op == Op::read || op == Op::sum) return true;
            operations += !ir::info(op).is_leaf();
        }
        return operations > kCheapOperations;
    }

    const Mod& mod_;
    ScoreParts& parts_;
    const std::size_t most_by_key_;
    std::vector<bool> seen_;
};

// Tiles of keys are multiples of 16, up to 128. With fewer than seven columns, eight adjacent keys
// would lie in more than two rows of the 2-D key index.
bool fits_tiles(std::int64_t width) {
    return width >= 7 && std::lcm(width, std::int64_t{16}) <= analysis::kWidest;
}
// Values by column are kept in registers, for a period of lcm(width, 8) keys.
bool fits_registers(std::int64_t width) { return std::lcm(width, std::int64_t{8}) <= 64; }

// Finds a dense tensor of indices by which elements read a table.
NodeId find_dense_indices(const Mod& mod, const StagedTables& staged) {
    for (const StagedTable& table : staged.tables) {
        const NodeId rest = table.split.parts.rest;
        if (rest == kNoNode) continue;
        for (const NodeId id : ir::reachable(mod.program.graph, std::span(&rest, 1)))
            if (mod.dependence[id].has(Dependence::q) && are_dense_indices(mod, id)) return id;
    }
    return kNoNode;
}

// Writes reals as sums of products of a number of the row and a number of the key.
class ProductFinder {
  public:
    explicit ProductFinder(Mod& mod) : mod_(mod), build_(mod.program.graph) {}

    // Nothing if it is no such sum, or has too many terms.
    std::optional<std::vector<RowKeyProduct>> terms(NodeId id, bool is_negative = false) {
        const ir::Node node = build_[id]; // the graph may grow
        std::vector<RowKeyProduct> sum;
        if (node.op == Op::fneg) return terms(node.operands[0], !is_negative);
        if (node.op == Op::fadd || node.op == Op::fsub) {
            auto left = terms(node.operands[0], is_negative);
            auto right = terms(node.operands[1], is_negative != (node.op == Op::fsub));
            if (!left || !right) return {};
            sum = std::move(*left);
            sum.insert(sum.end(), right->begin(), right->end());
        } else {
            auto product = product_of(id);
            if (!product) return {};
            if (is_negative) product->row = build_.apply(Op::fneg, {product->row});
            sum = {*product};
        }
        if (sum.size() > kMostRowKeyProducts) return {};
        return sum;
    }
    NodeId one() { return build_.real(1); }

  private:
    std::optional<RowKeyProduct> product_of(NodeId id) {
        const ir::Node node = build_[id];
        if (!uses(id, Dependence::kv)) return RowKeyProduct{id, one()};
        if (!uses(id, Dependence::q)) return RowKeyProduct{one(), id};
        if (node.op != Op::fmul) return {};
        const auto left = product_of(node.operands[0]), right = product_of(node.operands[1]);
        if (!left || !right) return {};
        return RowKeyProduct{build_.apply(Op::fmul, {left->row, right->row}),
                             build_.apply(Op::fmul, {left->key, right->key})};
    }
    bool uses(NodeId id, Dependence::Bit bit) {
        analysis::extend_dependences(mod_.dependence, mod_.program.graph);
        return mod_.dependence[id].has(bit);
    }

    Mod& mod_;
    Builder build_;
};

// Fills key_values and distance_values from the other parts.
void find_tabulated(const Mod& mod, ScoreParts& parts, std::size_t most_by_key = kFewByKey) {
    for (const RowKeyProduct& product : parts.products)
        parts.key_values.push_back(product.key);
    if (parts.key_addend != kNoNode) parts.key_values = {parts.key_addend};
    if (parts.distance_addend != kNoNode) parts.distance_values = {parts.distance_addend};
    const NodeId whole = of_elements(mod, parts);
    if (whole != kNoNode) TabulatedFinder(mod, parts, most_by_key).visit(whole);
}

// Finds all parts except the values that are computed before the kernel.
DecomposedMod decomposed_parts(const Mod& mod, int key_width) {
    DecomposedMod decomposed{mod, {}};
    Mod& result = decomposed.mod;
    decomposed.parts = Decomposer(mod, result.program.graph, key_width).decompose(result.score);
    find_facts(result);
    if (mod.program.is_dense()) find_bias(result, decomposed.parts);
    return decomposed;
}

// Whether there is no cap, and nothing is added but by rows, keys, slopes, distances and elements.
bool adds_few_terms(const ScoreParts& parts) {
    return parts.cap == kNoNode && !parts.kinds.found() && parts.quotient_addend == kNoNode &&
           parts.remainder_addend == kNoNode;
}
// The same without slopes and distances.
bool adds_no_terms(const ScoreParts& parts) {
    return adds_few_terms(parts) && parts.slope == kNoNode && parts.distance_addend == kNoNode;
}

// Takes products of rows and keys out of what elements add, if that is a sum of them, and nothing
// else changes the score but a number for the whole row, what keys add and a positive constant
// factor.
void find_products(Mod& mod, ScoreParts& parts) {
    if (parts.element_addend == kNoNode || parts.bias_read != kNoNode || !adds_no_terms(parts) ||
        !can_divide_by_multiplier(mod.program.graph, parts))
        return;
    ProductFinder finder(mod);
    auto products = finder.terms(parts.element_addend);
    if (!products) return;
    if (parts.key_addend != kNoNode) products->push_back({finder.one(), parts.key_addend});
    if (products->size() > kMostRowKeyProducts) return;
    parts.products = std::move(*products);
    parts.element_addend = parts.key_addend = kNoNode;
    find_facts(mod);
}

} // namespace

NodeId of_elements(const Mod& mod, const ScoreParts& parts) {
    return parts.found() ? parts.element_addend : mod.score;
}

DecomposedMod decompose_score(const Mod& mod, int key_width, std::size_t most_by_key) {
    DecomposedMod decomposed = decomposed_parts(mod, key_width);
    if (!mod.program.is_dense()) return decomposed;
    if (key_width == 0) find_products(decomposed.mod, decomposed.parts);
    find_tabulated(decomposed.mod, decomposed.parts, most_by_key);
    return decomposed;
}

DecomposedMod decompose_score_with_tables(const Mod& mod, bool copies_indices) {
    DecomposedMod decomposed = decomposed_parts(mod, 0);
    if (!mod.program.is_dense()) return decomposed;
    const NodeId whole = of_elements(decomposed.mod, decomposed.parts);
    if (whole != kNoNode) decomposed.parts.staged = stage_tables(decomposed.mod, {whole});
    if (copies_indices && decomposed.parts.bias_read == kNoNode)
        decomposed.parts.bias_read = find_dense_indices(decomposed.mod, decomposed.parts.staged);
    find_tabulated(decomposed.mod, decomposed.parts);
    return decomposed;
}

DecomposedMod decompose_score_with_aligned_tables(const Mod& mod) {
    DecomposedMod decomposed = decomposed_parts(mod, 0);
    ScoreParts& parts = decomposed.parts;
    if (!mod.program.is_dense() || parts.element_addend == kNoNode || parts.bias_read != kNoNode)
        return decomposed;
    parts.staged = stage_tables(decomposed.mod, {parts.element_addend});
    parts.aligns_tables = std::ranges::all_of(parts.staged.tables, [](const StagedTable& table) {
        return table.entries != 0 && table.split.parts.rest == kNoNode && table.where.empty();
    });
    if (!parts.aligns_tables) parts.staged.tables.clear();
    find_tabulated(decomposed.mod, parts);
    return decomposed;
}

DecomposedMod decompose_score_with_shifts(const Mod& mod, std::size_t most) {
    DecomposedMod decomposed = decomposed_parts(mod, 0);
    if (!mod.program.is_dense()) return decomposed;
    const NodeId whole = of_elements(decomposed.mod, decomposed.parts);
    if (whole != kNoNode) decomposed.parts.shifted = stage_shifts(decomposed.mod, {whole}, most);
    if (!decomposed.parts.shifted.empty()) decomposed.parts.bias_read = kNoNode;
    find_tabulated(decomposed.mod, decomposed.parts);
    return decomposed;
}

DecomposedMod decompose_score_with_kinds(const Mod& mod) {
    DecomposedMod decomposed = decomposed_parts(mod, 0);
    ScoreParts& parts = decomposed.parts;
    const bool may_have_kinds = mod.program.is_dense() && parts.element_addend != kNoNode &&
                                parts.cap == kNoNode &&
                                multiplies_by_one(decomposed.mod.program.graph, parts);
    if (!may_have_kinds) return decomposed;
    parts.kinds = find_key_kinds(decomposed.mod, parts.element_addend);
    if (!parts.kinds.found()) return decomposed;
    parts.element_addend = parts.bias_read = kNoNode;
    find_facts(decomposed.mod);
    find_tabulated(decomposed.mod, parts);
    return decomposed;
}

bool can_divide_by_multiplier(const ir::Graph& graph, const ScoreParts& parts) {
    constexpr double kMost = 1024;
    if (!parts.found()) return false;
    const ir::Node& multiplier = graph[parts.multiplier];
    return multiplier.op == ir::Op::const_real && multiplier.real >= 1 / kMost &&
           multiplier.real <= kMost;
}

bool multiplies_by_one(const ir::Graph& graph, const ScoreParts& parts) {
    if (!parts.found()) return false;
    const ir::Node& multiplier = graph[parts.multiplier];
    return multiplier.op == ir::Op::const_real && multiplier.real == 1;
}

bool starts_with_tables(const ir::Graph& graph, const ScoreParts& parts) {
    const std::vector<StagedTable>& tables = parts.staged.tables;
    return multiplies_by_one(graph, parts) && parts.cap == kNoNode && parts.bias_read == kNoNode &&
           parts.row_addend == kNoNode && parts.slope == kNoNode && parts.key_addend == kNoNode &&
           parts.distance_addend == kNoNode &&
           std::ranges::all_of(tables,
                               [](const StagedTable& table) { return table.entries != 0; }) &&
           std::ranges::any_of(
               tables, [](const StagedTable& table) { return table.split.parts.rest != kNoNode; });
}

bool are_products(const ir::Graph& graph, const ScoreParts& parts) {
    return multiplies_by_one(graph, parts) && parts.kinds.found() && parts.cap == kNoNode &&
           parts.row_addend == kNoNode && parts.key_addend == kNoNode &&
           parts.distance_addend == kNoNode && parts.element_addend == kNoNode;
}

bool starts_with_elements(const Mod& mod, const ScoreParts& parts) {
    const bool comes_first = parts.bias_read != kNoNode || !parts.shifted.empty() ||
                             (parts.aligns_tables && !parts.staged.tables.empty());
    const bool has_slope = parts.slope != kNoNode;
    // One more step of the products is for what keys add or for a slope. Beside aligned tables
    // there are no registers for offsets that change with each tile. Beside shifted reads maxima
    // would have to be known first, which takes longer than adding the slope to elements.
    const bool has_step_for_slope =
        !has_slope || (parts.key_addend == kNoNode && !parts.aligns_tables &&
                       parts.shifted.empty() && mod.place[parts.slope] <= Place::head);
    // Nothing else of keys or distances is read: it would have to be there earlier.
    const std::size_t brought = parts.key_addend != kNoNode ? 1 : 0;
    return comes_first && parts.element_addend != kNoNode &&
           multiplies_by_one(mod.program.graph, parts) && adds_few_terms(parts) &&
           parts.distance_addend == kNoNode && has_step_for_slope &&
           parts.key_values.size() == brought && parts.distance_values.empty();
}

bool multiplies_key_addend(const Mod& mod, const ScoreParts& parts) {
    return parts.key_addend != kNoNode &&
           (starts_with_elements(mod, parts) || adds_keys_alone(mod, parts));
}

bool adds_keys_alone(const Mod& mod, const ScoreParts& parts) {
    if (!parts.found() || !adds_no_terms(parts) || parts.element_addend != kNoNode) return false;
    if (!parts.products.empty()) return true;
    if (parts.key_addend != kNoNode) return mod.place[parts.multiplier] <= Place::head;
    return parts.row_addend != kNoNode || !multiplies_by_one(mod.program.graph, parts);
}

bool can_start_with_distances(const ir::Graph& graph, const ScoreParts& parts) {
    return parts.distance_addend != kNoNode && parts.distance_values.size() == 1 &&
           parts.key_values.empty() && parts.element_addend == kNoNode && parts.slope == kNoNode &&
           adds_few_terms(parts) && can_divide_by_multiplier(graph, parts);
}

bool can_multiply_slope(const Mod& mod, const ScoreParts& parts) {
    if (parts.slope == kNoNode) return false;
    if (parts.element_addend != kNoNode) return starts_with_elements(mod, parts);
    return parts.distance_addend == kNoNode && parts.key_addend == kNoNode &&
           adds_few_terms(parts) && can_divide_by_multiplier(mod.program.graph, parts);
}

bool adds_by_position(const Mod& mod, const ScoreParts& parts) {
    const bool has_slope = parts.slope != kNoNode && mod.place[parts.slope] <= Place::head;
    return parts.are_exponents() && (has_slope || parts.distance_addend != kNoNode);
}

KeyIndex2d key_index_2d(const Mod& mod, const ScoreParts& parts_without) {
    KeyIndex2d best;
    // Copied biases use the registers that a 2-D key index needs, and already save what it would.
    if (parts_without.bias_read != kNoNode || !mod.program.is_dense()) return best;
    bool best_is_whole = false;
    const std::vector<NodeId> roots = {mod.score};
    for (const std::int64_t width : analysis::key_widths(mod.program.graph, roots, fits_tiles)) {
        if (!fits_tiles(width)) continue;
        ir::Graph graph = mod.program.graph;
        const ScoreParts parts =
            Decomposer(mod, graph, static_cast<int>(width)).decompose(mod.score);
        const bool adds_to_products =
            multiplies_by_one(graph, parts) && parts.are_exponents() && parts.row_addend == kNoNode;
        const KeyIndex2d index_2d{static_cast<int>(width), parts.quotient_addend != kNoNode,
                                  parts.remainder_addend != kNoNode, adds_to_products};
        const bool is_whole = parts.element_addend == kNoNode;
        const auto count = [](const KeyIndex2d& of) { return of.quotients + of.remainders; };
        if ((index_2d.remainders && !fits_registers(width)) || count(index_2d) == 0) continue;
        if (std::pair(is_whole, count(index_2d)) <= std::pair(best_is_whole, count(best))) continue;
        best = index_2d;
        best_is_whole = is_whole;
    }
    return best;
}

TabulatedValues tabulated_values(const DecomposedMod& decomposed) {
    const ScoreParts& parts = decomposed.parts;
    Dependence uses;
    for (const std::vector<NodeId>& values : {parts.key_values, parts.distance_values})
        for (const NodeId id : values)
            uses = uses | decomposed.mod.dependence[id];
    // Addends of keys are divided by what multiplies products.
    if (multiplies_key_addend(decomposed.mod, parts) || !parts.products.empty())
        uses = uses | decomposed.mod.dependence[parts.multiplier];
    return {.keys = static_cast<int>(parts.key_values.size()),
            .distances = static_cast<int>(parts.distance_values.size()),
            .by_batch = uses.has(Dependence::b),
            .by_head = uses.has(Dependence::h)};
}

BesideElements beside_elements(const DecomposedMod& decomposed) {
    const auto& [mod, parts] = decomposed;
    const bool starts = starts_with_elements(mod, parts);
    return {.starts = starts,
            .keys = starts && parts.key_addend != kNoNode,
            .slope = starts && parts.slope != kNoNode,
            .rows = starts && parts.row_addend != kNoNode};
}

} // namespace flexc::passes
