// Integers as sums: what each one gains from one query or key to the next, and what else it is.
//
// The whole of what is known about how an integer is affine in something is here. What asks for it
// (bands, distances, slopes in kv, evenly spaced indices) looks at coefficients and at the rest.
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
    // No position, constant, sum, difference, negation or product with a constant: a size, a read,
    // kv_idx // 12, abs(q_idx - kv_idx), ... Also what is beyond the limits below.
    struct Term {
        ir::NodeId node = ir::kNoNode;
        Dependence uses; // of the node
        std::int64_t coefficient = 0;
        friend bool operator==(const Term&, const Term&) = default;
    };

    std::int64_t q = 0, kv = 0, constant = 0;
    std::vector<Term> rest; // by node, each once, and none with the coefficient 0

    bool is_constant() const { return q == 0 && kv == 0 && rest.empty(); }
    // Any term of the rest uses one of these (bits of Dependence): then q and kv are not all that
    // the integer gains by them.
    bool rest_uses(unsigned bits) const;
    friend bool operator==(const AffineForm&, const AffineForm&) = default;
};

// No number in a form is greater, so that sums of two fit in int64 with room to spare.
inline constexpr std::int64_t kMaxCoefficient = std::int64_t{1} << 31;
// More than any program has that is not made to be slow.
inline constexpr std::size_t kMaxTerms = 16;

// x + factor * y; nothing beyond the limits.
std::optional<AffineForm> sum(const AffineForm& x, const AffineForm& y, std::int64_t factor = 1);

// Of one integer, from those of its operands.
AffineForm affine_form(const ir::Graph& graph, ir::NodeId id, Dependence uses,
                       const std::function<const AffineForm&(ir::NodeId)>& form);

// The forms of all nodes, operands first, each from those of its operands: nodes times kMaxTerms is
// all the work there is, however much a program shares. A node that would be beyond a limit is a
// term itself. `dependence` has an entry for every node; nodes that are no integers have the form
// 0.
std::vector<AffineForm> affine_forms(const ir::Graph& graph,
                                     const std::vector<Dependence>& dependence);
// Of the nodes that were made since.
void extend_affine_forms(std::vector<AffineForm>& forms, const ir::Graph& graph,
                         const std::vector<Dependence>& dependence);

// Whether an integer gains the same from each query to the next.
inline bool is_linear_by_query(const AffineForm& form) { return !form.rest_uses(Dependence::q); }
// kv's coefficient, where kv enters in no other way and the score in none; 0 without kv. Nothing
// for those too great to be of use.
std::optional<std::int64_t> slope_in_kv(const AffineForm& form);
// The integer is q_idx, or kv_idx, plus what uses neither.
bool is_shifted_position(const AffineForm& form);

} // namespace flexc::analysis
