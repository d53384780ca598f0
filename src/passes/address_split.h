// The address of a captured read as nodes: where a head's slice of the buffer begins, and the place
// in the slice, in parts that are computed once for a query, once for a key and for each element.
#pragma once

#include <vector>

#include "passes/captured_read.h"
#include "passes/mod.h"

namespace flexc::passes {

// Integers; kNoNode stands for a part that is 0 everywhere.
struct AddressParts {
    ir::NodeId query = ir::kNoNode, key = ir::kNoNode, rest = ir::kNoNode;
};

struct AddressSplit {
    // One for each index of the read. index = first + the sum of its parts, and is in the slice
    // where that is in [0, entries). `first` uses b and h at most; `entries` neither.
    struct Index {
        ir::NodeId first = ir::kNoNode, entries = ir::kNoNode;
        AddressParts parts;
    };
    std::vector<Index> indices;
    // The place in the slice: its entries in the order of the indices, the last one's together.
    // Where every index is in the slice, the sum of these parts is in [0, count).
    AddressParts parts;
    ir::NodeId place = ir::kNoNode; // the sum of the parts
    ir::NodeId count = ir::kNoNode; // of entries
};

// Adds nodes to the mod's graph; facts of these are found by find_facts(). Holds for elements of
// the piece.
AddressSplit split_address(Mod& mod, const CapturedRead& read, const ReadPiece& piece);
// The same for all elements of a read of any pieces. The slice is the buffer in each dim whose
// index changes inside of a head, and each index has one part.
AddressSplit split_by_dims(Mod& mod, const CapturedRead& read);

} // namespace flexc::passes
