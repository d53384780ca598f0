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
            (is_of_pair && !is_stored_for_pairs(index)) || !dim.is_constant() || dim.constant < 1 ||
            dim.constant > most)
            return false;
        if (kinds_.count == 0) {
            kinds_.kind = index;
            kinds_.count = static_cast<int>(dim.constant);
            kinds_.are_of_pairs = is_of_pair;
            kinds_.pairs_use_batch = is_of_pair && uses.has(Dependence::b);
        }
        return kinds_.kind == index && kinds_.count == dim.constant;
    }
    // Whether an index that heads share reads memory that has an element for each query and key, so
    // that a byte for each of them is no more than there is.
    bool is_stored_for_pairs(NodeId index) const {
        if (mod_.dependence[index].has(Dependence::h)) return false;
        const std::vector<NodeId> nodes = ir::reachable(mod_.program.graph, std::span(&index, 1));
        return std::ranges::any_of(nodes, [&](NodeId id) {
            const ir::Node& node = mod_.program.graph[id];
            return node.op == Op::read && has_index(node, Op::q_idx) &&
                   has_index(node, Op::kv_idx) &&
                   (!mod_.dependence[index].has(Dependence::b) || has_index(node, Op::b));
        });
    }
    bool has_index(const ir::Node& read, Op position) const {
        return std::ranges::any_of(
            read.operands, [&](NodeId index) { return mod_.program.graph[index].op == position; });
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

} // namespace

KeyKinds find_key_kinds(Mod& mod, NodeId addend) { return KindFinder(mod).find(addend); }

} // namespace flexc::passes
