#include "cuda/fold.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "analysis/distance.h"
#include "analysis/key_grid.h"
#include "cuda/expand.h"
#include "passes/hoist.h"
#include "passes/matrix_read.h"
#include "passes/simplify.h"

namespace flexc::cuda {

namespace {

using analysis::Dependence;
using analysis::KeyUse;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

// Nodes looked at: shared expressions are walked once for each use.
constexpr int kMaxWork = 2000;

class Folder {
  public:
    Folder(ir::Graph& graph, int key_width) : build_(graph), key_width_(key_width) {}

    ScoreParts fold(NodeId score) {
        ScoreParts parts;
        if (auto capped = capped_operand(score)) {
            parts.cap = capped->cap;
            score = capped->inside;
        }
        const std::optional<Affine> affine = split(score);
        if (!affine || affine->multiplier == kNoNode || uses(affine->multiplier, Dependence::kv))
            return {};
        for (const NodeId addend : affine->addends)
            sort(addend, parts);
        if (work_ > kMaxWork) return {};
        parts.multiplier = affine->multiplier;
        return parts;
    }

  private:
    struct Affine {
        NodeId multiplier = kNoNode; // kNoNode: 0
        std::vector<NodeId> addends;
    };
    struct Capped {
        NodeId cap, inside;
    };

    const ir::Node& node(NodeId id) const { return build_[id]; }
    bool uses(NodeId id, Dependence::Bit bit) {
        if (dependence_.size() <= id) dependence_ = analysis::dependences(build_.graph());
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

    Affine mapped(Affine x, Op op, NodeId by) {
        if (x.multiplier != kNoNode) x.multiplier = build_.apply(op, {x.multiplier, by});
        for (NodeId& addend : x.addends)
            addend = build_.apply(op, {addend, by});
        return x;
    }
    std::optional<Affine> added(std::optional<Affine> x, const std::optional<Affine>& y,
                                bool subtract) {
        if (!x || !y) return {};
        x->multiplier = sum(x->multiplier, subtract ? negative(y->multiplier) : y->multiplier);
        for (const NodeId addend : y->addends)
            x->addends.push_back(subtract ? negative(addend) : addend);
        return x;
    }
    std::optional<Affine> scaled(NodeId x, NodeId y) {
        if (uses(x, Dependence::score)) std::swap(x, y);
        if (uses(x, Dependence::score)) return {};
        auto affine = split(y);
        if (affine) *affine = mapped(std::move(*affine), Op::fmul, x);
        return affine;
    }

    // As multiplier * score + addends.
    std::optional<Affine> split(NodeId id) {
        if (++work_ > kMaxWork) return {};
        if (!uses(id, Dependence::score)) return Affine{kNoNode, {id}};
        const std::vector<NodeId> operands = node(id).operands; // the graph may grow
        switch (node(id).op) {
        case Op::score: return Affine{build_.real(1), {}};
        case Op::fadd: return added(split(operands[0]), split(operands[1]), false);
        case Op::fsub: return added(split(operands[0]), split(operands[1]), true);
        case Op::fneg: return added(Affine{}, split(operands[0]), true);
        case Op::fmul: return scaled(operands[0], operands[1]);
        case Op::fma: return added(scaled(operands[0], operands[1]), split(operands[2]), false);
        case Op::fdiv: {
            if (uses(operands[1], Dependence::score)) return {};
            auto affine = split(operands[0]);
            if (affine) *affine = mapped(std::move(*affine), Op::fdiv, operands[1]);
            return affine;
        }
        default: return {};
        }
    }

    // Sums are taken apart only where the whole is not affine in kv.
    void sort(NodeId addend, ScoreParts& parts) {
        if (++work_ > kMaxWork) return;
        if (const auto gain = slope(addend)) {
            parts.row_addend = sum(parts.row_addend, addend);
            parts.slope = sum(parts.slope, *gain);
            return;
        }
        if (NodeId* const early = expanded_part(addend, parts)) {
            *early = sum(*early, addend);
        } else if (NodeId* const part = part_of_grid(addend, parts)) {
            *part = sum(*part, addend);
        } else if (const auto both = terms(addend)) {
            sort(both->first, parts);
            sort(both->second, parts);
        } else {
            parts.element_addend = sum(parts.element_addend, addend);
        }
    }

    // Where what is the same for all queries, or along diagonals, belongs; null for others.
    NodeId* expanded_part(NodeId addend, ScoreParts& parts) {
        if (!uses(addend, Dependence::q)) return &parts.key_addend;
        return analysis::is_of_distance(build_.graph(), dependence_, addend)
                   ? &parts.distance_addend
                   : nullptr;
    }

    // Where what is the same in a row or a column of the grid of keys belongs; null for others.
    NodeId* part_of_grid(NodeId addend, ScoreParts& parts) {
        if (key_width_ == 0) return nullptr;
        if (key_uses_.size() <= addend) key_uses_ = analysis::key_uses(build_.graph(), key_width_);
        if (key_uses_[addend] == KeyUse::quotient) return &parts.quotient_addend;
        if (key_uses_[addend] == KeyUse::remainder) return &parts.remainder_addend;
        return nullptr;
    }

    // Two nodes whose sum a node is. With a grid of keys, factors are taken into a sum too, so that
    // its terms can go where each belongs.
    std::optional<std::pair<NodeId, NodeId>> terms(NodeId id) {
        if (++work_ > kMaxWork) return {};
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

    // What a real value gains from one key to the next, where that is the same for all keys;
    // kNoNode for nothing.
    std::optional<NodeId> slope(NodeId id) {
        if (++work_ > kMaxWork) return {};
        if (!uses(id, Dependence::kv)) return kNoNode;
        const std::vector<NodeId> operands = node(id).operands;
        switch (node(id).op) {
        case Op::int_to_real:
            if (const auto gain = integer_slope(operands[0]))
                return build_.real(static_cast<double>(*gain));
            return {};
        case Op::fneg: {
            const auto gain = slope(operands[0]);
            if (!gain) return {};
            return negative(*gain);
        }
        case Op::fadd:
        case Op::fsub: {
            const auto left = slope(operands[0]), right = slope(operands[1]);
            if (!left || !right) return {};
            return sum(*left, node(id).op == Op::fsub ? negative(*right) : *right);
        }
        case Op::fmul:
            for (const std::size_t side : {0u, 1u})
                if (!uses(operands[side], Dependence::kv)) {
                    const auto gain = slope(operands[1 - side]);
                    if (!gain) return {};
                    return build_.apply(Op::fmul, {*gain, operands[side]});
                }
            return {};
        case Op::fdiv: {
            if (uses(operands[1], Dependence::kv)) return {};
            const auto gain = slope(operands[0]);
            if (!gain) return {};
            return build_.apply(Op::fdiv, {*gain, operands[1]});
        }
        default: return {};
        }
    }
    std::optional<std::int64_t> integer_slope(NodeId id) {
        constexpr std::int64_t kLargest = 1 << 20;
        if (++work_ > kMaxWork) return {};
        if (!uses(id, Dependence::kv)) return 0;
        const std::vector<NodeId>& operands = node(id).operands;
        std::optional<std::int64_t> result;
        switch (node(id).op) {
        case Op::kv_idx: return 1;
        case Op::ineg:
            if (const auto x = integer_slope(operands[0])) result = -*x;
            break;
        case Op::iadd:
        case Op::isub: {
            const auto x = integer_slope(operands[0]), y = integer_slope(operands[1]);
            if (x && y) result = node(id).op == Op::isub ? *x - *y : *x + *y;
            break;
        }
        case Op::imul:
            for (const std::size_t side : {0u, 1u})
                if (const auto factor = build_.integer_constant(operands[side])) {
                    const auto x = integer_slope(operands[1 - side]);
                    if (x && *factor >= -kLargest && *factor <= kLargest) result = *x * *factor;
                }
            break;
        default: break;
        }
        if (result && (*result < -kLargest || *result > kLargest)) return {};
        return result;
    }

    passes::Builder build_;
    const int key_width_;
    std::vector<Dependence> dependence_;
    std::vector<KeyUse> key_uses_;
    int work_ = 0;
};

ir::NodeId find_bias_read(const passes::Mod& mod, NodeId addend) {
    if (addend == kNoNode) return kNoNode;
    const std::vector<NodeId> roots = {addend};
    // What keys alone name is computed before the kernel.
    for (const NodeId id : ir::reachable(mod.program.graph, roots))
        if (mod.dependence[id].has(Dependence::q) && passes::is_matrix_read(mod, id)) return id;
    return kNoNode;
}

// Tiles are multiples of 16 keys, up to 128. In fewer than seven columns, eight neighbouring keys
// would be in more than two rows of the grid.
bool fits_tiles(std::int64_t width) {
    return width >= 7 && width <= 128 && std::lcm(width, std::int64_t{16}) <= 128;
}
// What repeats is kept in registers: that of a period of this width and of eight keys.
bool fits_registers(std::int64_t width) { return std::lcm(width, std::int64_t{8}) <= 64; }

} // namespace

FoldedMod fold_score(const passes::Mod& mod, int key_width) {
    FoldedMod folded{mod, {}};
    passes::Mod& result = folded.mod;
    folded.parts = Folder(result.program.graph, key_width).fold(result.score);
    result.dependence = analysis::dependences(result.program.graph);
    result.ranges = analysis::ranges(result.program);
    result.counters = ir::counters_of(result.program.graph);
    result.place = passes::hoist(result.dependence, result.counters);
    folded.parts.bias_read = find_bias_read(result, folded.parts.element_addend);
    find_expanded(result, folded.parts);
    return folded;
}

bool multiplies_by_one(const ir::Graph& graph, const ScoreParts& parts) {
    if (!parts.found()) return false;
    const ir::Node& multiplier = graph[parts.multiplier];
    return multiplier.op == ir::Op::const_real && multiplier.real == 1;
}

KeyGrid key_grid(const passes::Mod& mod) {
    KeyGrid best;
    // Biases that are copied need the registers, and their elements what the grid would save.
    if (bias_bytes(mod) != 0) return best;
    bool best_is_whole = false;
    const std::vector<NodeId> roots = {mod.score};
    for (const std::int64_t width : analysis::key_divisors(mod.program.graph, roots)) {
        if (!fits_tiles(width)) continue;
        ir::Graph graph = mod.program.graph;
        const ScoreParts parts = Folder(graph, static_cast<int>(width)).fold(mod.score);
        const bool adds_to_products =
            multiplies_by_one(graph, parts) && parts.are_exponents() && parts.row_addend == kNoNode;
        const KeyGrid grid{static_cast<int>(width), parts.quotient_addend != kNoNode,
                           parts.remainder_addend != kNoNode, adds_to_products};
        const bool is_whole = parts.element_addend == kNoNode;
        const auto count = [](const KeyGrid& of) { return of.quotients + of.remainders; };
        if ((grid.remainders && !fits_registers(width)) || count(grid) == 0) continue;
        if (std::pair(is_whole, count(grid)) <= std::pair(best_is_whole, count(best))) continue;
        best = grid;
        best_is_whole = is_whole;
    }
    return best;
}

int bias_bytes(const passes::Mod& mod) {
    const FoldedMod folded = fold_score(mod);
    if (folded.parts.bias_read == kNoNode) return 0;
    const ir::Program& program = folded.mod.program;
    const ir::Node& read = program.graph[folded.parts.bias_read];
    return static_cast<int>(size_of(program.buffers[read.symbol].dtype));
}

} // namespace flexc::cuda
