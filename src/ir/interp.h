// The reference evaluator: every operator by the `reference` column of ops.def, in double, or in
// dual numbers for derivatives. Slow and plain; backends and passes are tested against it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ir/program.h"
#include "ir/reference.h"

namespace flexc::ir {

using reference::Dual;

// The member that the node's type names is the value.
template <typename T> struct Value {
    bool boolean = false;
    std::int64_t integer = 0;
    T real{};
};

// Applies one operator to values of its operands. Not for leaves.
template <typename T> Value<T> apply(Op op, std::span<const Value<T>> operands);

// A captured array, row-major. `at`, when set, is asked instead of the arrays, with indices inside.
struct BufferData {
    std::vector<std::int64_t> extents;
    std::vector<double> reals;          // float buffers
    std::vector<std::int64_t> integers; // integer and bool buffers
    std::function<Value<double>(std::span<const std::int64_t>)> at;
};

struct Environment {
    double score = 0;
    std::int64_t b = 0, h = 0, h_kv = 0, q_idx = 0, kv_idx = 0;
    std::int64_t q_row = 0, kv_row = 0, q_len = 0, kv_len = 0; // of layouts that are not dense
    std::int64_t counter = 0;               // of roots and seeds that are in the term of a sum
    std::vector<std::int64_t> sizes;        // one per Program::sizes
    std::vector<Value<double>> params;      // one per Program::params
    std::vector<const BufferData*> buffers; // one per Program::buffers
};

// Values of all nodes that the roots need, indexed by node. For Dual, the slope of `seed` (the
// score leaf or a read) is 1 and every other leaf's is 0. A read outside its buffer gives 0.
template <typename T>
std::vector<Value<T>> evaluate(const Program& program, std::span<const NodeId> roots,
                               const Environment& environment, NodeId seed = kNoNode);

// The same into `values`, which has an entry for every node, in an order in which operands come
// first; entries of other operands are there already.
void evaluate_nodes(const Program& program, std::span<const NodeId> order,
                    const Environment& environment, std::vector<Value<double>>& values);

double evaluate_real(const Program& program, NodeId root, const Environment& environment);
std::int64_t evaluate_integer(const Program& program, NodeId root, const Environment& environment);
bool evaluate_boolean(const Program& program, NodeId root, const Environment& environment);
// d root / d seed.
double evaluate_slope(const Program& program, NodeId root, const Environment& environment,
                      NodeId seed);

} // namespace flexc::ir
