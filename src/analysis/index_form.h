// Indices in normal form: sums of digits of q and kv and of other numbers, each multiplied by
// something that uses no position. Also finds values that use q and kv through differences of
// digits alone.
//
// Everything can be asked under assumptions about conditions: a select is then the arm that they
// choose, and results hold wherever the assumptions do.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/affine.h"
#include "analysis/dependence.h"
#include "analysis/product.h"
#include "analysis/range.h"
#include "ir/graph.h"

namespace flexc::analysis {

// (position + offset) // start % (end / start); without an end there is no modulus. start divides
// end. Both are at least 1, or contain parameters that must be when a kernel starts.
struct Digit {
    ir::Op position = ir::Op::q_idx; // or kv_idx
    AffineForm offset;               // uses no position; 0 where the digit is the position itself
    Product start;
    std::optional<Product> end;
};

// The difference of q's digit and kv's digit at the same place.
struct DigitDifference {
    Product start;
    std::optional<Product> end;
    AffineForm q_offset, kv_offset;

    bool is_distance() const { return start.is(1) && !end; } // q - kv itself
    friend bool operator==(const DigitDifference&, const DigitDifference&) = default;
};

// Describes how a value uses positions, if through differences alone.
struct Differences {
    bool only = true; // it does; it uses no score
    std::vector<DigitDifference> used;
};

// coefficient * node, where kNoNode stands for 1. The node uses a position or the score; the
// factors of the coefficient do not.
struct IndexTerm {
    Product coefficient;
    ir::NodeId node = ir::kNoNode;
    Dependence uses; // of the node
};
// A sum of terms, of which no two have the same node and factors.
using IndexForm = std::vector<IndexTerm>;

// Conditions, and the value that each is assumed to have.
using Assumptions = std::vector<std::pair<ir::NodeId, bool>>;

// The forms of the requested nodes and of all that they need.
class IndexForms {
  public:
    IndexForms(const ir::Graph& graph, const Ranges& ranges, Assumptions assumptions = {});

    void find(std::span<const ir::NodeId> roots);

    // Only for nodes that have been found.
    Dependence uses(ir::NodeId id) const { return facts(id).uses; }
    const AffineForm& affine(ir::NodeId id) const { return facts(id).affine; }
    const IndexForm& form(ir::NodeId id) const { return facts(id).form; }
    const std::optional<Digit>& digit(ir::NodeId id) const { return facts(id).digit; }
    const Differences& differences(ir::NodeId id) const { return facts(id).differences; }
    // The value of a boolean, if assumptions or constants decide it.
    std::optional<bool> truth(ir::NodeId id) const { return facts(id).truth; }
    // The node itself, or the arm of a select whose condition is known.
    ir::NodeId chosen(ir::NodeId id) const { return facts(id).chosen; }
    // The range of an integer.
    Interval range(ir::NodeId id) const { return ranges_.of_node[chosen(id)]; }

  private:
    struct Facts {
        ir::NodeId chosen = ir::kNoNode;
        Dependence uses;
        std::optional<bool> truth;
        AffineForm affine;
        IndexForm form;
        std::optional<Digit> digit;
        Differences differences;
    };
    // An integer that is a digit of `node`, or of the position, plus a value that uses no position.
    struct ShiftedDigit {
        Digit digit;
        AffineForm more;
    };

    const Facts& facts(ir::NodeId id) const { return facts_.at(id); }
    Facts find(ir::NodeId id) const;
    std::optional<bool> find_truth(ir::NodeId id) const;
    IndexForm find_form(ir::NodeId id, const Facts& found) const;
    std::optional<Digit> find_digit(ir::NodeId id, const Facts& found) const;
    Differences find_differences(ir::NodeId id, const Facts& found) const;
    Differences differences_of_sum(const IndexForm& form) const;
    std::optional<ShiftedDigit> shifted_digit(const AffineForm& form) const;
    std::optional<Product> radix(ir::NodeId id) const;
    bool is_free(ir::NodeId id) const { return (uses(id).bits & kInsideHead) == 0; }

    const ir::Graph& graph_;
    const Ranges& ranges_;
    Assumptions assumptions_;
    ir::NodeId q_ = ir::kNoNode, kv_ = ir::kNoNode;
    std::unordered_map<ir::NodeId, Facts> facts_;
};

// Places of digits in a mixed radix, lowest first. The differences that a value uses are functions
// of the differences of these digits, of q + q_offset and kv + kv_offset.
struct Grid {
    struct Axis {
        Product start;
        std::optional<Product> end;
        friend bool operator==(const Axis&, const Axis&) = default;
    };
    AffineForm q_offset, kv_offset;
    std::vector<Axis> axes;
};
// Returns nothing if the places do not form a mixed radix, or if offsets differ.
std::optional<Grid> grid_of(std::span<const DigitDifference> differences);

} // namespace flexc::analysis
