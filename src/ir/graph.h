// The typed expression graph: immutable nodes in creation order, so that operands precede users
// and equal expressions are the same node (hash-consing).
#pragma once

#include <cstdint>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsl/source.h"

namespace flexc::ir {

enum class Type : std::uint8_t { boolean, integer, real };

enum class Op : std::uint8_t {
#define FLEXC_LEAF(name, type) name,
#define FLEXC_OP(name, signature, derivative, reference, cuda, llvm) name,
#include "ir/ops.def"
};

struct OpInfo {
    std::string_view name;
    std::string_view signature; // empty for leaves
    std::string_view cuda;
    std::string_view llvm;
    bool differentiable;
    bool is_leaf() const { return signature.empty(); }
    bool compares_integers() const { return signature == "ii>b"; }
    int arity() const { return is_leaf() ? 0 : static_cast<int>(signature.find('>')); }
};
const OpInfo& info(Op op);
std::span<const OpInfo> all_operators();
Type type_of_letter(char letter);
std::string_view name(Type type);

using NodeId = std::uint32_t;
inline constexpr NodeId kNoNode = ~NodeId{0};

struct Node {
    Op op;
    Type type;
    std::uint32_t symbol = 0; // size, param or buffer index
    std::int64_t integer = 0; // const_int, const_bool
    double real = 0;          // const_real
    std::vector<NodeId> operands;
    dsl::Span span; // where the text that made it stands; not part of its identity
};

class Graph {
  public:
    const Node& operator[](NodeId id) const { return nodes_[id]; }
    NodeId size() const { return static_cast<NodeId>(nodes_.size()); }

    // Each returns the existing node when an equal one is there. Nothing is folded here.
    NodeId boolean(bool value, dsl::Span span = {});
    NodeId integer(std::int64_t value, dsl::Span span = {});
    NodeId real(double value, dsl::Span span = {});
    NodeId ambient(Op op, dsl::Span span = {}); // score b h h_kv q_idx kv_idx and others
    NodeId size_of(std::uint32_t size_symbol, dsl::Span span = {});
    NodeId param(std::uint32_t param_symbol, Type type, dsl::Span span = {});
    NodeId read(std::uint32_t buffer_symbol, Type type, std::vector<NodeId> indices,
                dsl::Span span = {});
    NodeId counter(NodeId first, NodeId end, dsl::Span span = {});
    NodeId sum(NodeId counter, NodeId term, dsl::Span span = {}); // of the term's type
    NodeId apply(Op op, std::vector<NodeId> operands, dsl::Span span = {});

  private:
    NodeId intern(Node node);

    std::vector<Node> nodes_;
    std::unordered_multimap<std::size_t, NodeId> index_;
};

// The same node in another graph; `renamed` names the operands there.
NodeId copy_node(Graph& to, const Node& node, std::span<const NodeId> renamed);

// Nodes that the roots need, in an order in which operands come first.
std::vector<NodeId> reachable(const Graph& graph, std::span<const NodeId> roots);

// visit(node): whether to go on with its operands. Users come before their operands, each node that
// is reached so once.
template <typename Visit>
void visit_from(const Graph& graph, const std::vector<NodeId>& roots, Visit visit) {
    std::set<NodeId> pending(roots.begin(), roots.end());
    // Users have larger ids than their operands.
    while (!pending.empty()) {
        const NodeId id = *pending.rbegin();
        pending.erase(std::prev(pending.end()));
        if (!visit(id)) continue;
        const std::vector<NodeId>& operands = graph[id].operands;
        pending.insert(operands.begin(), operands.end());
    }
}

// The counter that each node's value changes with; kNoNode outside of sums. Terms hold no sums that
// change with the counter around them.
std::vector<NodeId> counters_of(const Graph& graph);

// Returns the nodes that the term of a sum computes for each value of the counter, operands first.
std::vector<NodeId> bound_nodes(const Graph& graph, NodeId sum, std::span<const NodeId> counters);

} // namespace flexc::ir
