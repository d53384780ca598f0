// The address of a captured read as nodes: the start of a head's slice of the buffer, and the place
// in the slice, as parts that are computed once for each query, each key, and each element.
#pragma once

#include <vector>

#include "passes/captured_read.h"
#include "passes/mod.h"

namespace flexc::passes {

// Integers; kNoNode is a part that is always 0.
struct AddressParts {
    ir::NodeId query = ir::kNoNode, key = ir::kNoNode, rest = ir::kNoNode;
};

struct AddressSplit {
    // One for each index of the read: index = first + the sum of its parts. It is inside the slice
    // if that sum is in [0, entries). `first` depends on b and h at most, `entries` on neither.
    struct Index {
        ir::NodeId first = ir::kNoNode, entries = ir::kNoNode;
        AddressParts parts;
    };
    std::vector<Index> indices;
    // The place in the slice, in row-major order. If every index is inside the slice, the sum of
    // these parts is in [0, count).
    AddressParts parts;
    ir::NodeId place = ir::kNoNode; // the sum of the parts
    ir::NodeId count = ir::kNoNode; // of entries
};

// Splits the address of a read, for elements for which the piece holds. Adds nodes to the mod's
// graph; find_facts() must follow.
AddressSplit split_address(Mod& mod, const CapturedRead& read, const ReadPiece& piece);
// The same for all elements of a read, whatever its pieces. In each dim whose index varies within a
// head the slice is the whole buffer, and each index is a single part.
AddressSplit split_by_dims(Mod& mod, const CapturedRead& read);

} // namespace flexc::passes
