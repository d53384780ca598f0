// Makes typed nodes: follows constants, refuses what overflows, and stops at the size limit. A
// missing operand (kNoNode) stands for something already reported and makes a missing result.
#pragma once

#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "front/reporter.h"
#include "ir/interp.h"
#include "ir/program.h"

namespace flexc::front {

inline constexpr ir::NodeId kMaxNodes = 4096;

// A number and the text it came from.
struct Operand {
    ir::NodeId node = ir::kNoNode;
    dsl::Span span;
    bool given = true; // false: an optional argument that is not there
};

using Constant = ir::Value<double>;

class Builder {
  public:
    Builder(ir::Graph& graph, Reporter& reporter) : graph_(&graph), reporter_(&reporter) {}

    Reporter& report() { return *reporter_; }
    ir::Graph& graph() { return *graph_; }
    ir::Type type(ir::NodeId node) const { return (*graph_)[node].type; }

    ir::NodeId boolean(bool value, dsl::Span span);
    ir::NodeId integer(std::int64_t value, dsl::Span span);
    ir::NodeId real(double value, dsl::Span span);
    ir::NodeId literal(ir::Type type, const Constant& value, dsl::Span span);
    ir::NodeId ambient(ir::Op op, dsl::Span span);
    ir::NodeId size_of(std::uint32_t symbol, dsl::Span span);
    ir::NodeId param(std::uint32_t symbol, ir::Type type, dsl::Span span);
    ir::NodeId read(std::uint32_t buffer, ir::Type type, std::vector<ir::NodeId> indices,
                    dsl::Span span);
    ir::NodeId counter(ir::NodeId first, ir::NodeId end, dsl::Span span);
    ir::NodeId sum(ir::NodeId counter, ir::NodeId term, dsl::Span span);
    ir::NodeId apply(ir::Op op, std::vector<ir::NodeId> operands, dsl::Span span);

    // Converts a node; a literal becomes a literal of the other type.
    ir::NodeId to_real(ir::NodeId node, dsl::Span span);
    ir::NodeId to_integer(ir::NodeId node, dsl::Span span); // of a bool or an integer

    std::optional<Constant> constant(ir::NodeId node) const;

    // The limit was hit and reported; nothing more is made.
    bool exhausted() const { return exhausted_; }
    void exhaust(dsl::Span span, std::string message, std::string hint);

  private:
    ir::NodeId checked(ir::NodeId node, dsl::Span span);

    ir::Graph* graph_;
    Reporter* reporter_;
    std::unordered_map<ir::NodeId, Constant> constants_;
    std::unordered_set<ir::NodeId> replaced_; // literals that became real ones: they do not count
    bool exhausted_ = false;
};

} // namespace flexc::front
