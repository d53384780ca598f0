#include "analysis/tile_class.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>

namespace flexc::analysis {

using interval::Fact;
using ir::NodeId;
using ir::Op;

namespace {

// Which positions each node uses. Values that change with a counter have no single value for a
// position, so they count as using both.
std::vector<std::uint8_t> positions_of(const ir::Graph& graph) {
    const std::vector<Dependence> uses = dependences(graph);
    const std::vector<NodeId> counters = ir::counters_of(graph);
    std::vector<std::uint8_t> positions(graph.size());
    for (NodeId id = 0; id < graph.size(); ++id)
        positions[id] = static_cast<std::uint8_t>(
            kPositions & (counters[id] != ir::kNoNode ? ~0u : uses[id].bits));
    return positions;
}

// Nothing if there is no such function.
template <int kArity, typename Function>
std::optional<Fact> call(Function function, const std::array<Fact, 3>& x) {
    if constexpr (kArity == 1 && std::is_invocable_v<Function, Fact>)
        return function(x[0]);
    else if constexpr (kArity == 2 && std::is_invocable_v<Function, Fact, Fact>)
        return function(x[0], x[1]);
    else if constexpr (kArity == 3 && std::is_invocable_v<Function, Fact, Fact, Fact>)
        return function(x[0], x[1], x[2]);
    else
        return {};
}

constexpr int arity(std::string_view signature) { return static_cast<int>(signature.find('>')); }

// Evaluates the function of common/interval.h that is named like the operator, if there is one.
std::optional<Fact> known_interval(Op op, const std::array<Fact, 3>& operands) {
    switch (op) {
    case Op::counter: return interval::counter(operands[0], operands[1]);
    case Op::sum: return interval::sum(operands[0], operands[1]);
#define FLEXC_OP(name, signature, derivative, reference, cuda, llvm)                               \
    case Op::name:                                                                                 \
        return call<arity(signature)>(                                                             \
            [](auto... x) -> decltype(name(x...)) { return name(x...); }, operands);
#include "ir/ops.def"
    default: return {};
    }
}

Fact fact_of(ir::Type type, const ir::Value<double>& value) {
    switch (type) {
    case ir::Type::boolean: return interval::of(value.boolean);
    case ir::Type::integer: return interval::of(static_cast<long long>(value.integer));
    case ir::Type::real: break;
    }
    return std::isfinite(value.real) ? Fact{value.real, value.real} : interval::anything();
}

// Finds nodes that interval arithmetic over a tile may decide; for others, an interval never says
// more than the type.
class Informative {
  public:
    Informative(const ir::Graph& graph, NodeId mask)
        : graph_(graph), positions_(positions_of(graph)), known_(graph.size()) {
        for (NodeId id : ir::reachable(graph, std::span(&mask, 1)))
            known_[id] = find(id);
    }
    bool operator[](NodeId id) const { return known_[id]; }

  private:
    bool find(NodeId id) const {
        const ir::Node& node = graph_[id];
        if (positions_[id] != kPositions) return true;
        const auto known = [&](NodeId operand) { return known_[operand]; };
        switch (node.op) {
        case Op::read:
        case Op::sum:
        case Op::imod:
        case Op::ixor: return false;
        // One known operand can be enough to hide, or to show.
        case Op::band:
        case Op::bor: return std::ranges::any_of(node.operands, known);
        default: break;
        }
        return (node.type == ir::Type::boolean || has_tile_interval(node.op)) &&
               std::ranges::all_of(node.operands, known);
    }

    const ir::Graph& graph_;
    std::vector<std::uint8_t> positions_;
    std::vector<bool> known_;
};

} // namespace

bool has_tile_interval(Op op) {
    constexpr std::array<Fact, 3> kOnes = {Fact{1, 1}, Fact{1, 1}, Fact{1, 1}};
    const std::optional<Fact> known = known_interval(op, kOnes);
    return known && interval::is_finite(*known);
}

Fact tile_interval(Op op, ir::Type type, const std::array<Fact, 3>& operands) {
    const std::optional<Fact> known = known_interval(op, operands);
    if (known) return *known;
    return type == ir::Type::boolean ? interval::any_truth() : interval::anything();
}

MaskTier tier_of(const ir::Graph& graph, NodeId mask, const Band& band) {
    if (graph[mask].op == Op::const_bool) return MaskTier::constant;
    if (band.exact) return MaskTier::closed_form;
    return Informative(graph, mask)[mask] ? MaskTier::tile_tests : MaskTier::exhaustive;
}

bool uses_real_arithmetic(const ir::Graph& graph, NodeId mask) {
    const std::vector<NodeId> order = ir::reachable(graph, std::span(&mask, 1));
    return std::ranges::any_of(order, [&](NodeId id) {
        return graph[id].type == ir::Type::real &&
               (!ir::info(graph[id].op).is_leaf() || graph[id].op == Op::sum);
    });
}

TileClassifier::TileClassifier(const ir::Program& program, NodeId mask,
                               const ir::Environment& environment, TiledAxis queries,
                               TiledAxis keys, support::Watch watch)
    : program_(program), mask_(mask), environment_(environment),
      positions_(positions_of(program.graph)), watch_(std::move(watch)),
      values_(program.graph.size()), facts_(program.graph.size()) {
    queries_.axis = queries;
    keys_.axis = keys;
    find_nodes();
    ir::evaluate_nodes(program_, fixed_, environment, values_);
    for (NodeId id : fixed_)
        facts_[id] = fact_of(program_.graph[id].type, values_[id]);
    fill(queries_, Dependence::q);
    fill(keys_, Dependence::kv);
}

// Called before each evaluation; reads the clock now and then.
bool TileClassifier::is_over() const {
    constexpr std::uint32_t kEvaluations = 1024;
    return watch_.was_ended() || (++evaluations_ % kEvaluations == 0 && watch_.is_over());
}

// Finds the nodes that each side computes: those that use it alone and that are the mask, or
// operands of an operator that uses both sides.
void TileClassifier::find_nodes() {
    const ir::Graph& graph = program_.graph;
    std::vector<bool> used(graph.size());
    const std::vector<NodeId> order = ir::reachable(graph, std::span(&mask_, 1));
    used[mask_] = true;
    for (NodeId id : order)
        if (positions_[id] == kPositions)
            for (NodeId operand : graph[id].operands)
                used[operand] = true;
    for (NodeId id : order) {
        const std::uint8_t positions = positions_[id];
        if (positions == 0) fixed_.push_back(id);
        if (positions == kPositions) elements_.push_back(id);
        if (!used[id]) continue;
        if (positions == Dependence::q) queries_.nodes.push_back(id);
        if (positions == Dependence::kv) keys_.nodes.push_back(id);
    }
}

void TileClassifier::fill(Side& side, Dependence::Bit variable) {
    if (side.nodes.empty()) return;
    const ir::Graph& graph = program_.graph;
    std::vector<NodeId> order;
    for (NodeId id : ir::reachable(graph, side.nodes))
        if (positions_[id] == variable) order.push_back(id);
    ir::Environment at = environment_;
    std::vector<ir::Value<double>> values = values_;
    for (std::int64_t position = 0; position < side.axis.length && !is_over(); ++position) {
        (variable == Dependence::q ? at.q_idx : at.kv_idx) = position + side.axis.offset;
        ir::evaluate_nodes(program_, order, at, values);
        const bool is_first = position % side.axis.tile == 0;
        const std::size_t tile = static_cast<std::size_t>(position / side.axis.tile);
        if (is_first) side.facts.resize((tile + 1) * side.nodes.size());
        for (std::size_t i = 0; i < side.nodes.size(); ++i) {
            const NodeId id = side.nodes[i];
            const Fact fact = fact_of(graph[id].type, values[id]);
            Fact& sum = side.facts[tile * side.nodes.size() + i];
            sum = is_first ? fact : interval::hull(sum, fact);
            side.values.push_back(values[id]);
        }
    }
}

std::optional<TileClass> TileClassifier::test(std::int64_t query_tile,
                                              std::int64_t key_tile) const {
    const auto take = [&](const Side& side, std::int64_t tile) {
        for (std::size_t i = 0; i < side.nodes.size(); ++i)
            facts_[side.nodes[i]] =
                side.facts[static_cast<std::size_t>(tile) * side.nodes.size() + i];
    };
    take(queries_, query_tile);
    take(keys_, key_tile);
    for (NodeId id : elements_) {
        const ir::Node& node = program_.graph[id];
        if (node.op == Op::read || (node.op == Op::sum && node.type == ir::Type::real)) {
            facts_[id] =
                node.type == ir::Type::boolean ? interval::any_truth() : interval::anything();
            continue;
        }
        std::array<Fact, 3> operands{};
        for (std::size_t i = 0; i < node.operands.size(); ++i)
            operands[i] = facts_[node.operands[i]];
        facts_[id] = tile_interval(node.op, node.type, operands);
    }
    if (facts_[mask_].high == 0) return TileClass::empty;
    if (facts_[mask_].low == 1) return TileClass::full;
    return {};
}

void TileClassifier::put(const Side& side, std::int64_t position) const {
    for (std::size_t i = 0; i < side.nodes.size(); ++i)
        values_[side.nodes[i]] =
            side.values[static_cast<std::size_t>(position) * side.nodes.size() + i];
}

TileClass TileClassifier::evaluate(std::int64_t query_tile, std::int64_t key_tile) const {
    bool visible = false, hidden = false;
    for (std::int64_t q = queries_.axis.begin(query_tile); q < queries_.axis.end(query_tile); ++q) {
        put(queries_, q);
        for (std::int64_t kv = keys_.axis.begin(key_tile); kv < keys_.axis.end(key_tile); ++kv) {
            if (is_over()) return TileClass::partial;
            put(keys_, kv);
            ir::evaluate_nodes(program_, elements_, environment_, values_);
            (values_[mask_].boolean ? visible : hidden) = true;
            if (visible && hidden) return TileClass::partial;
        }
    }
    return visible ? TileClass::full : TileClass::empty;
}

TileClass TileClassifier::classify(std::int64_t query_tile, std::int64_t key_tile) const {
    if (watch_.was_ended()) return TileClass::partial; // a side may lack its last tiles
    const auto tested = test(query_tile, key_tile);
    return tested ? *tested : evaluate(query_tile, key_tile);
}

} // namespace flexc::analysis
