#include "passes/key_kinds.h"

#include <algorithm>
#include <span>
#include <vector>

#include "passes/simplify.h"

namespace flexc::passes {

using analysis::Dependence;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

bool has_index(const Mod& mod, const ir::Node& read, Op position) {
    return std::ranges::any_of(
        read.operands, [&](NodeId index) { return mod.program.graph[index].op == position; });
}
// Whether an index that heads share reads memory that has an element for each query and key (and
// batch entry), so that a byte for each of them is no more than there is.
bool is_stored_for_pairs(const Mod& mod, NodeId index, bool uses_batch) {
    if (mod.dependence[index].has(Dependence::h)) return false;
    const std::vector<NodeId> nodes = ir::reachable(mod.program.graph, std::span(&index, 1));
    return std::ranges::any_of(nodes, [&](NodeId id) {
        const ir::Node& node = mod.program.graph[id];
        return node.op == Op::read && has_index(mod, node, Op::q_idx) &&
               has_index(mod, node, Op::kv_idx) && (!uses_batch || has_index(mod, node, Op::b));
    });
}

// Finds the one index that decides the kinds of keys, or of pairs.
class KindFinder {
  public:
    explicit KindFinder(Mod& mod) : mod_(mod), build_(mod.program.graph) {}

    KeyKinds find(NodeId addend) {
        kinds_.addend_of_kind = of_kind(addend);
        const bool has_rows = kinds_.are_of_pairs && uses_query_;
        return kinds_.addend_of_kind == kNoNode || has_rows ? KeyKinds{} : kinds_;
    }

  private:
    // The value with the kind substituted for the key; kNoNode if it uses keys in any other way.
    NodeId of_kind(NodeId id) {
        if (++work_ > kMaxWork || mod_.counters[id] != kNoNode) return kNoNode;
        const ir::Node node = build_[id]; // the graph may grow
        switch (node.op) {
        case Op::read: return read_of_kind(node);
        case Op::fadd:
        case Op::fsub: return of_kinds(node, {0, 1});
        case Op::fneg: return of_kinds(node, {0});
        case Op::fmul: return of_kinds(node, {uses_key(node.operands[0]) ? 0U : 1U});
        case Op::fdiv: return of_kinds(node, {0});
        default: return kNoNode;
        }
    }
    // Substitutes the kind in these operands; kNoNode if another operand uses the key.
    NodeId of_kinds(const ir::Node& node, const std::vector<std::size_t>& changed) {
        std::vector<NodeId> operands = node.operands;
        for (std::size_t i = 0; i < operands.size(); ++i) {
            const bool changes = std::ranges::find(changed, i) != changed.end();
            if (!changes && uses_key(operands[i])) return kNoNode;
            if (changes)
                operands[i] = of_kind(operands[i]);
            else
                keep(operands[i]);
            if (operands[i] == kNoNode) return kNoNode;
        }
        return build_.apply(node.op, operands, node.span);
    }
    NodeId read_of_kind(const ir::Node& node) {
        std::vector<NodeId> indices = node.operands;
        const std::vector<ir::Dim>& dims = mod_.program.buffers[node.symbol].dims;
        bool has_kind = false;
        for (std::size_t i = 0; i < indices.size(); ++i) {
            if (!uses_key(indices[i])) {
                keep(indices[i]);
                continue;
            }
            if (has_kind || !take(indices[i], dims[i])) return kNoNode;
            has_kind = true;
            indices[i] = build_.graph().ambient(Op::kv_idx);
        }
        return has_kind ? build_.graph().read(node.symbol, node.type, indices, node.span) : kNoNode;
    }
    // Whether an index is the kind of all reads so far.
    bool take(NodeId index, const ir::Dim& dim) {
        const Dependence uses = mod_.dependence[index];
        const bool is_of_pair = uses.has(Dependence::q);
        const int most = is_of_pair ? kMostPairKinds : kMostKeyKinds;
        if (uses.has(Dependence::score) || mod_.counters[index] != kNoNode ||
            (is_of_pair && !is_stored_for_pairs(mod_, index, uses.has(Dependence::b))) ||
            !dim.is_constant() || dim.constant < 1 || dim.constant > most)
            return false;
        if (kinds_.count == 0) {
            kinds_.kind = index;
            kinds_.count = static_cast<int>(dim.constant);
            kinds_.are_of_pairs = is_of_pair;
            kinds_.pairs_use_batch = is_of_pair && uses.has(Dependence::b);
            kinds_.indices = {index};
        }
        return kinds_.kind == index && kinds_.count == dim.constant;
    }
    // Notes what a part that is no kind uses.
    void keep(NodeId id) { uses_query_ = uses_query_ || mod_.dependence[id].has(Dependence::q); }
    bool uses_key(NodeId id) const {
        return mod_.dependence[id].has(Dependence::kv) ||
               mod_.dependence[id].has(Dependence::score);
    }

    static constexpr int kMaxWork = 256; // nodes looked at

    Mod& mod_;
    Builder build_;
    KeyKinds kinds_;
    bool uses_query_ = false; // apart from kinds
    int work_ = 0;
};

// Finds kinds of pairs that several indices and conditions decide.
class DigitFinder {
  public:
    explicit DigitFinder(Mod& mod) : mod_(mod), build_(mod.program.graph) {}

    KeyKinds find(NodeId addend) {
        if (!visit(addend)) return {};
        bool is_stored = false;
        for (const Digit& digit : digits_)
            is_stored = is_stored || (!digit.is_condition &&
                                      is_stored_for_pairs(mod_, digit.value, uses_batch_));
        if (!is_stored) return {};
        if (!find_room()) return {};
        KeyKinds kinds{.are_of_pairs = true, .pairs_use_batch = uses_batch_, .bound = bound_};
        std::int64_t count = 1;
        NodeId kind = build_.integer(0);
        for (Digit& digit : digits_) {
            digit.step = count;
            kind = build_.apply(
                Op::iadd, {kind, build_.apply(Op::imul, {number(digit), build_.integer(count)})});
            count *= digit.count();
            if (count > kMostPairKinds) return {};
            if (!digit.is_condition) kinds.indices.push_back(digit.value);
        }
        kinds.count = static_cast<int>(count);
        kinds.kind = kind;
        kinds.addend_of_kind = of_kind(addend);
        return kinds;
    }

  private:
    // An index below its extent, or outside: that is the extent's number then. Or a condition.
    struct Digit {
        NodeId value = kNoNode;
        bool is_condition = false, is_inside = true, is_bound = false; // by a call
        std::int64_t extent = 2, step = 1;
        std::int64_t count() const { return extent + (is_inside ? 0 : 1); }
    };

    bool changes(NodeId id) const {
        return (mod_.dependence[id].bits & analysis::kInsideHead) != 0;
    }
    // Notes the digits that a value uses. Returns false if it uses pairs in any other way.
    bool visit(NodeId id) {
        if (!changes(id)) return true;
        if (++work_ > kMaxWork || mod_.counters[id] != kNoNode ||
            mod_.dependence[id].has(Dependence::score))
            return false;
        const ir::Node& node = mod_.program.graph[id];
        if (node.type == ir::Type::boolean) return take({.value = id, .is_condition = true});
        if (node.type != ir::Type::real || node.op == Op::sum) return false;
        if (node.op != Op::read)
            return std::ranges::all_of(node.operands,
                                       [&](NodeId operand) { return visit(operand); });
        const std::vector<ir::Dim>& dims = mod_.program.buffers[node.symbol].dims;
        const std::vector<bool>& proven = mod_.ranges.in_range[id];
        for (std::size_t i = 0; i < node.operands.size(); ++i) {
            if (!changes(node.operands[i])) continue;
            const bool is_bound = !dims[i].is_constant();
            const bool is_length =
                is_bound && (dims[i].size == ir::kQLen || dims[i].size == ir::kKvLen);
            if (is_length || !take({.value = node.operands[i],
                                    .is_inside = !is_bound && i < proven.size() && proven[i],
                                    .is_bound = is_bound,
                                    .extent = is_bound ? 1 : dims[i].constant}))
                return false;
            if (is_bound)
                bound_.push_back({.buffer = node.symbol, .dim = static_cast<std::uint32_t>(i)});
        }
        return true;
    }
    bool take(const Digit& digit) {
        const Dependence uses = mod_.dependence[digit.value];
        if (uses.has(Dependence::h) || uses.has(Dependence::score) ||
            mod_.counters[digit.value] != kNoNode)
            return false;
        uses_batch_ = uses_batch_ || uses.has(Dependence::b);
        const auto same = std::ranges::find(digits_, digit.value, &Digit::value);
        if (same == digits_.end()) {
            digits_.push_back(digit);
            return digits_.size() <= kMostDigits && digit.extent >= 1 &&
                   digit.extent <= kMostPairKinds;
        }
        // Below the larger of two extents, or outside of it.
        same->extent = std::max(same->extent, digit.extent);
        same->is_inside = same->is_inside && digit.is_inside;
        same->is_bound = same->is_bound || digit.is_bound;
        return same->extent <= kMostPairKinds;
    }
    // Finds the most that an extent may be which a call binds: what bytes have room for beside the
    // other digits. Returns false if that is little, or if there are several such digits.
    bool find_room() {
        constexpr std::int64_t kLeast = 16;
        std::int64_t others = 1;
        Digit* bound = nullptr;
        for (Digit& digit : digits_) {
            if (!digit.is_bound) {
                others = std::min<std::int64_t>(others * digit.count(), kMostPairKinds);
            } else {
                if (bound != nullptr) return false;
                bound = &digit;
            }
        }
        if (bound == nullptr) return true;
        const std::int64_t room = kMostByteKinds / others - 1;
        if (room < std::max(kLeast, bound->extent)) return false;
        bound->extent = room;
        for (KeyKinds::BoundDim& dim : bound_)
            dim.most = room;
        return true;
    }

    // A digit's number, of an element.
    NodeId number(const Digit& digit) {
        if (digit.is_condition)
            return build_.apply(Op::iselect, {digit.value, build_.integer(1), build_.integer(0)});
        if (digit.is_inside) return digit.value;
        const NodeId extent = build_.integer(digit.extent);
        const NodeId is_inside =
            build_.apply(Op::band, {build_.apply(Op::ile, {build_.integer(0), digit.value}),
                                    build_.apply(Op::ilt, {digit.value, extent})});
        return build_.apply(Op::iselect, {is_inside, digit.value, extent});
    }
    // The same of a kind, which stands in the place of the key.
    NodeId number_of_kind(NodeId value) {
        const Digit& digit = *std::ranges::find(digits_, value, &Digit::value);
        const NodeId above = build_.apply(
            Op::ifloordiv, {build_.graph().ambient(Op::kv_idx), build_.integer(digit.step)});
        return build_.apply(Op::imod, {above, build_.integer(digit.count())});
    }
    NodeId of_kind(NodeId id) {
        if (!changes(id)) return id;
        const ir::Node node = build_[id]; // the graph may grow
        if (node.type == ir::Type::boolean)
            return build_.apply(Op::ine, {number_of_kind(id), build_.integer(0)});
        std::vector<NodeId> operands = node.operands;
        for (NodeId& operand : operands)
            if (changes(operand))
                operand = node.op == Op::read ? number_of_kind(operand) : of_kind(operand);
        return node.op == Op::read
                   ? build_.graph().read(node.symbol, node.type, operands, node.span)
                   : build_.apply(node.op, operands, node.span);
    }

    static constexpr int kMaxWork = 256; // nodes looked at
    static constexpr std::size_t kMostDigits = 8;

    Mod& mod_;
    Builder build_;
    std::vector<Digit> digits_;
    std::vector<KeyKinds::BoundDim> bound_;
    bool uses_batch_ = false;
    int work_ = 0;
};

} // namespace

KeyKinds find_key_kinds(Mod& mod, NodeId addend) {
    const KeyKinds by_one = KindFinder(mod).find(addend);
    return by_one.found() ? by_one : DigitFinder(mod).find(addend);
}

} // namespace flexc::passes
