// Algebraic simplification. A rule may change a real result by f32 rounding and the sign of a zero
// only; NaN and infinities are preserved, and so are derivatives at kinks. Integers wrap.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/program.h"

namespace flexc::passes {

// Makes nodes, each in its simplest form.
class Builder {
  public:
    explicit Builder(ir::Graph& graph) : graph_(graph) {}

    ir::NodeId boolean(bool value, dsl::Span span = {}) { return graph_.boolean(value, span); }
    ir::NodeId integer(std::int64_t value, dsl::Span span = {}) {
        return graph_.integer(value, span);
    }
    ir::NodeId real(double value, dsl::Span span = {}); // rounded to f32
    ir::NodeId sum(ir::NodeId counter, ir::NodeId term, dsl::Span span = {});
    ir::NodeId apply(ir::Op op, std::vector<ir::NodeId> operands, dsl::Span span = {});

    const ir::Graph& graph() const { return graph_; }
    ir::Graph& graph() { return graph_; }
    const ir::Node& operator[](ir::NodeId id) const { return graph_[id]; }

    // The value of a constant; empty for any other node.
    std::optional<double> real_constant(ir::NodeId id) const;
    std::optional<std::int64_t> integer_constant(ir::NodeId id) const;
    std::optional<bool> boolean_constant(ir::NodeId id) const;
    bool is_real(ir::NodeId id, double value) const;
    bool is_integer(ir::NodeId id, std::int64_t value) const;
    bool is_boolean(ir::NodeId id, bool value) const;
    bool is_constant(ir::NodeId id) const;
    bool is(ir::NodeId id, ir::Op op) const { return graph_[id].op == op; }
    ir::NodeId operand(ir::NodeId id, std::size_t position) const {
        return graph_[id].operands[position];
    }

  private:
    std::optional<ir::NodeId> fold(ir::Op op, std::span<const ir::NodeId> operands, dsl::Span span);

    ir::Graph& graph_;
};

// The rules, by the type of the result. Each returns the simpler node, or nothing.
using Operands = std::span<const ir::NodeId>;
std::optional<ir::NodeId> simplify_real(Builder& build, ir::Op op, Operands operands);
std::optional<ir::NodeId> simplify_integer(Builder& build, ir::Op op, Operands operands);
std::optional<ir::NodeId> simplify_logic(Builder& build, ir::Op op, Operands operands);

// Rebuilds what the roots need in a new graph until nothing changes. The roots then name its nodes;
// kNoNode stays as it is. Roots may be members of the program itself.
void simplify(ir::Program& program, std::span<ir::NodeId* const> roots);

} // namespace flexc::passes
