// A score mod taken apart, for kernels that compute a part of it in the softmax's exponent.
#pragma once

#include <vector>

#include "cuda/config.h"
#include "passes/mod.h"

namespace flexc::cuda {

// The modified score is multiplier * score and the addends, or cap * tanh of that.
// Every node is real; kNoNode where a part is absent.
struct ScoreParts {
    ir::NodeId multiplier = ir::kNoNode; // uses neither kv nor score
    ir::NodeId row_addend = ir::kNoNode; // affine in kv
    ir::NodeId slope = ir::kNoNode;      // what row_addend gains from one key to the next
    // Of keys as a grid of some width: what uses kv // width, or kv % width, alone.
    ir::NodeId quotient_addend = ir::kNoNode, remainder_addend = ir::kNoNode;
    // Other addends that use kv alone, or q and kv by their difference alone, beside b and h.
    ir::NodeId key_addend = ir::kNoNode, distance_addend = ir::kNoNode;
    ir::NodeId element_addend = ir::kNoNode; // any other
    ir::NodeId cap = ir::kNoNode;            // uses neither q, kv nor score
    // A read of floats or 16-bit numbers that element_addend uses, never outside its buffer, whose
    // last index is kv itself and whose others are q itself or use the head at most: a matrix that
    // can be copied.
    ir::NodeId bias_read = ir::kNoNode;
    // What is computed before the kernel, for each key and each distance: the addends, first, and
    // what else of the score is dear and uses kv, or q - kv, alone.
    std::vector<ir::NodeId> key_values, distance_values;
    bool found() const { return multiplier != ir::kNoNode; }
    // Addends are multiplied by log2(e) once and for all, and the exponent is the logit itself.
    bool are_exponents() const {
        return found() && cap == ir::kNoNode && element_addend == ir::kNoNode;
    }
};

struct FoldedMod {
    passes::Mod mod; // with nodes for the parts
    ScoreParts parts;
};

// No parts are found where the score enters otherwise, or not at all. key_width: of the grid, or 0
// for none.
FoldedMod fold_score(const passes::Mod& mod, int key_width = 0);
// Nothing is multiplied with scores.
bool multiplies_by_one(const ir::Graph& graph, const ScoreParts& parts);
// The grid of keys of which most is the same for a whole row or column.
KeyGrid key_grid(const passes::Mod& mod);
// Bytes of an element of such a matrix; 0 without one.
int bias_bytes(const passes::Mod& mod);

} // namespace flexc::cuda
