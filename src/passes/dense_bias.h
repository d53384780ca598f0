// Reads of dense biases that have a row for each query and a column for each key.
#pragma once

#include <optional>

#include "passes/mod.h"

namespace flexc::passes {

// Whether an index is q, plus what is the same for a head.
bool is_query_of_bias(const Mod& mod, ir::NodeId index);

// Whether tiles of a read can be copied row by row: it is of floats or 16-bit numbers, never
// outside its buffer; its last index is kv itself, and the others are q, plus what is the same for
// a head, or depend on the head at most.
bool is_dense_bias(const Mod& mod, ir::NodeId read);

// The same for 32-bit integers, such as the index of the table entry that each element reads.
bool are_dense_indices(const Mod& mod, ir::NodeId read);

// The dense bias that the score needs for each element, preferably one with a gradient; kNoNode for
// none.
ir::NodeId dense_bias_of_score(const Mod& mod);

// The read of the score whose tiles a fused backward can copy: the dense bias, else
// Mod::shifted_bias; kNoNode for none.
ir::NodeId copied_bias_of_score(const Mod& mod);

// Returns the band of the elements that use what a read gives, where choices by the distance leave
// it to one of their branches: where(abs(q_idx - kv_idx) < w, bias[h, q_idx, kv_idx], 0). It has a
// bound at most for each side. Adds nodes to the graph if there is a band.
analysis::Band band_of_use(ir::Graph& graph, ir::NodeId root, ir::NodeId read);

// Whether the gradients that are added by tiles equal the score's gradient, and no other gradient
// needs that one element by element first.
bool are_biases_of_scores(const Mod& mod);
// Whether their buffers are 16-bit too, so that dS rounded to 16 bits (as for dq) is accurate
// enough.
bool are_biases_narrow(const Mod& mod);

// Which tiles add to the same element of a gradient that is added by tiles.
struct BiasSharing {
    bool batches = false; // all of them
    bool heads = false;   // all of them
    bool group = false;   // query heads that share keys
    friend bool operator==(const BiasSharing&, const BiasSharing&) = default;
};
// If every element of all these gradients is written equally often (one block computes some keys),
// the first block can store instead of adding. Empty if elements are hidden or left out, or if
// gradients differ in this.
std::optional<BiasSharing> sharing_of_biases(const Mod& mod);

} // namespace flexc::passes
