// Affine forms of integers: how much an integer increases from one query or key to the next, and
// what else it consists of.
//
// Everything known about how an integer is affine in something is here. Users (bands, distances,
// slopes in kv, evenly spaced indices) look at the coefficients and at the rest.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "analysis/dependence.h"
#include "ir/graph.h"

namespace flexc::analysis {

// q * q_idx + kv * kv_idx + constant + the sum of coefficient * node over the rest. The integer has
// this value wherever it is evaluated, as 64-bit integers wrap.
struct AffineForm {
    // A node that is no position, constant, sum, difference, negation or product with a constant: a
    // size, a read, kv_idx // 12, abs(q_idx - kv_idx), ... Also any node that exceeds the limits
    // below.
    struct Term {
        ir::NodeId node = ir::kNoNode;
        Dependence uses; // of the node
        std::int64_t coefficient = 0;
        friend bool operator==(const Term&, const Term&) = default;
    };

    std::int64_t q = 0, kv = 0, constant = 0;
    std::vector<Term> rest; // by node, each once, and none with the coefficient 0

    bool is_constant() const { return q == 0 && kv == 0 && rest.empty(); }
    // Whether a term of the rest uses one of these (bits of Dependence). If so, q and kv are not
    // all that the integer increases by.
    bool rest_uses(unsigned bits) const;
    friend bool operator==(const AffineForm&, const AffineForm&) = default;
};

// No number in a form is larger, so that sums of two fit into int64.
inline constexpr std::int64_t kMaxCoefficient = std::int64_t{1} << 31;
// More terms than any reasonable program has.
inline constexpr std::size_t kMaxTerms = 16;

// Returns x + factor * y; nothing beyond the limits.
std::optional<AffineForm> sum(const AffineForm& x, const AffineForm& y, std::int64_t factor = 1);

// Returns the form of one integer, from those of its operands.
AffineForm affine_form(const ir::Graph& graph, ir::NodeId id, Dependence uses,
                       const std::function<const AffineForm&(ir::NodeId)>& form);

// Returns the forms of all nodes, operands first, each from those of its operands: the work is at
// most the number of nodes times kMaxTerms. A node that would exceed a limit is a term itself.
// `dependence` has an entry for every node; nodes that are not integers have the form 0.
std::vector<AffineForm> affine_forms(const ir::Graph& graph,
                                     const std::vector<Dependence>& dependence);
// Adds the forms of nodes that were made since.
void extend_affine_forms(std::vector<AffineForm>& forms, const ir::Graph& graph,
                         const std::vector<Dependence>& dependence);

// Whether an integer increases by the same amount from each query to the next.
inline bool is_linear_by_query(const AffineForm& form) { return !form.rest_uses(Dependence::q); }
// Returns kv's coefficient if the integer uses kv in no other way and does not use the score; 0
// without kv. Nothing for coefficients that are too large.
std::optional<std::int64_t> slope_in_kv(const AffineForm& form);
// Whether the integer is q_idx, or kv_idx, plus a value that uses neither.
bool is_shifted_position(const AffineForm& form);

} // namespace flexc::analysis
