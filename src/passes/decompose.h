// A score mod decomposed into terms, for kernels that compute some of them once for a row, a column
// or a distance, and the rest in the exponent of the softmax.
#pragma once

#include <vector>

#include "passes/key_kinds.h"
#include "passes/mod.h"
#include "passes/shifted_read.h"
#include "passes/staged_table.h"

namespace flexc::passes {

// Keys as the rows and columns of a 2-D key index (kv // width, kv % width): which parts of a score
// mod use one of the two alone.
struct KeyIndex2d {
    int width = 0; // 0: none
    bool quotients = false, remainders = false;
    // Beside columns, rows are all that is added to products, and nothing multiplies these.
    bool adds_to_products = false;
};

// Values of the score mod that are tabulated before the forward kernel: so many for each key, and
// for each distance q - kv; once for all batch entries and heads, unless they use these.
struct TabulatedValues {
    int keys = 0, distances = 0;
    bool by_batch = false, by_head = false;
    bool any() const { return keys + distances != 0; }
};

// The modified score is multiplier * score and the addends, or cap * tanh of that.
// Every node is real; kNoNode where a part is absent. What is computed before the kernel, copied,
// or kept on chip has one place for each position: only dense layouts have such parts, and the
// elements of others compute all that is no line in kv.
struct ScoreParts {
    ir::NodeId multiplier = ir::kNoNode; // uses neither kv nor score
    ir::NodeId row_addend = ir::kNoNode; // affine in kv
    ir::NodeId slope = ir::kNoNode;      // what row_addend gains from one key to the next
    // Of a 2-D key index of some width: what uses kv // width, or kv % width, alone.
    ir::NodeId quotient_addend = ir::kNoNode, remainder_addend = ir::kNoNode;
    // Other addends that use kv alone, or q and kv by their difference alone, beside b and h.
    ir::NodeId key_addend = ir::kNoNode, distance_addend = ir::kNoNode;
    ir::NodeId element_addend = ir::kNoNode; // any other
    ir::NodeId cap = ir::kNoNode;            // uses neither q, kv nor score
    // A read of floats or 16-bit numbers that element_addend uses, never outside its buffer, whose
    // last index is kv itself and whose others are q itself or use the head at most: a dense bias
    // that can be copied. Where tables are kept on chip, one of 32-bit indices of these may take
    // its place.
    ir::NodeId bias_read = ir::kNoNode;
    // What is computed before the kernel, for each key and each distance: the addends, first, and
    // what else of the score is dear and uses kv, or q - kv, alone.
    std::vector<ir::NodeId> key_values, distance_values;
    // What the score reads for each element, for kernels that keep tables on chip.
    StagedTables staged;
    bool aligns_tables = false; // what keys give of places there is known for whole tiles
    // For kernels that copy tiles of these; the dense bias is one of them then.
    std::vector<ShiftedRead> shifted;
    // What comes with the products by the key's kind, for kernels that multiply by kinds; no part
    // of element_addend.
    KeyKinds kinds;
    bool found() const { return multiplier != ir::kNoNode; }
    // Addends are multiplied by log2(e) once and for all, and the exponent is the logit itself.
    bool are_exponents() const {
        return found() && cap == ir::kNoNode && element_addend == ir::kNoNode;
    }
};

struct DecomposedMod {
    Mod mod; // with nodes for the parts
    ScoreParts parts;
};

// No parts are found where the score enters otherwise, or not at all. key_width: of the 2-D key
// index, or 0 for none.
DecomposedMod decompose_score(const Mod& mod, int key_width = 0);
// For kernels that keep tables on chip: what a key gives of a place there is tabulated instead of
// what it gives of an index. copies_indices: a dense tensor of indices may be what is copied.
DecomposedMod decompose_score_with_tables(const Mod& mod, bool copies_indices = true);
// The same for kernels whose tiles of keys start where the digits do that tables are read by; no
// tables where something else decides their places.
DecomposedMod decompose_score_with_aligned_tables(const Mod& mod);
// For kernels that copy tiles of so many shifted reads at most.
DecomposedMod decompose_score_with_shifts(const Mod& mod, std::size_t most = kMostShiftedReads);
// For kernels that multiply by kinds of keys; without kinds where those cannot: where something
// else is added or read for each element.
DecomposedMod decompose_score_with_kinds(const Mod& mod);
// Whether products are added to what tables on chip have: an element adds nothing but what it
// computes from these, an index among it, and slices have room whatever the tensors.
bool starts_with_tables(const ir::Graph& graph, const ScoreParts& parts);
// Nothing is multiplied with scores.
bool multiplies_by_one(const ir::Graph& graph, const ScoreParts& parts);
// And nothing is added but what comes with products.
bool are_products(const ir::Graph& graph, const ScoreParts& parts);
// What is added follows from the positions, by a slope of the head or a function of the distance:
// it is largest at an end of the keys or near the query, mostly.
bool adds_by_position(const Mod& mod, const ScoreParts& parts);
// The 2-D key index of which most is the same for a whole row or column. The parts are those
// without a 2-D key index.
KeyIndex2d key_index_2d(const Mod& mod, const ScoreParts& parts_without);

TabulatedValues tabulated_values(const DecomposedMod& decomposed);

} // namespace flexc::passes
