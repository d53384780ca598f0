// Reads of dense biases that have a row for each query and a column for each key.
#pragma once

#include <optional>

#include "passes/mod.h"

namespace flexc::passes {

// Whether a read is of floats or 16-bit numbers, never outside its buffer, with kv itself as the
// last index, and others that are q itself or use the head at most: what a tile of scores reads can
// be copied row by row.
bool is_dense_bias(const Mod& mod, ir::NodeId read);

// The same of whole numbers of 32 bits: of which entry of a table each element reads, for one.
bool are_dense_indices(const Mod& mod, ir::NodeId read);

// The dense bias that the score needs for each element, one with a gradient first; kNoNode for
// none.
ir::NodeId dense_bias_of_score(const Mod& mod);

// Whether gradients that are added a tile at a time are those of the score, and no other one asks
// for these element by element before they are known.
bool are_biases_of_scores(const Mod& mod);
// Whether their buffers have 16 bits too: dS in 16 bits, as dq has it, is as good for them.
bool are_biases_narrow(const Mod& mod);

// Whose tiles meet at an element of a gradient that is added a tile at a time.
struct BiasSharing {
    bool batches = false; // all of them
    bool heads = false;   // all of them
    bool group = false;   // query heads that share keys
    friend bool operator==(const BiasSharing&, const BiasSharing&) = default;
};
// Where the blocks that add all of these gradients, one block for some keys, write each element as
// often: then the first can store what it has. Empty where something is hidden, where elements are
// left out, or where gradients differ in that.
std::optional<BiasSharing> sharing_of_biases(const Mod& mod);

} // namespace flexc::passes
