// Decomposes a score mod into terms, for kernels that compute some of them once for a row, column
// or distance, and fold others into the exponent of the softmax.
#pragma once

#include <cstddef>
#include <vector>

#include "passes/key_kinds.h"
#include "passes/mod.h"
#include "passes/shifted_read.h"
#include "passes/staged_table.h"

namespace flexc::passes {

// The 2-D key index (kv // width, kv % width): which parts of a score mod use only one of the two.
struct KeyIndex2d {
    int width = 0; // 0: none
    bool quotients = false, remainders = false;
    // Apart from the addends by row and by column, nothing is added to the products or multiplies
    // them.
    bool adds_to_products = false;
};

// Number of score mod values that are tabulated before the forward kernel, for each key and for
// each distance q - kv. They are computed once for all batch entries and heads unless they depend
// on these.
struct TabulatedValues {
    int keys = 0, distances = 0;
    bool by_batch = false, by_head = false;
    bool any() const { return keys + distances != 0; }
};

// An addend that is the product of a number of the row and a number of the key.
struct RowKeyProduct {
    ir::NodeId row = ir::kNoNode, key = ir::kNoNode;
};

// The modified score is multiplier * score + addends, or cap * tanh of that. All nodes are real;
// kNoNode if a part is absent. Parts that are computed before the kernel, copied, or kept in shared
// memory need one place for each position, so only dense layouts have them; for other layouts,
// element_addend holds everything that is not linear in kv.
struct ScoreParts {
    ir::NodeId multiplier = ir::kNoNode; // uses neither kv nor score
    ir::NodeId row_addend = ir::kNoNode; // affine in kv
    ir::NodeId slope = ir::kNoNode;      // what row_addend gains from one key to the next
    // Addends that depend on kv // width alone, or on kv % width alone, for a 2-D key index.
    ir::NodeId quotient_addend = ir::kNoNode, remainder_addend = ir::kNoNode;
    // Addends that depend on kv alone, or on q - kv alone, besides b and h.
    ir::NodeId key_addend = ir::kNoNode, distance_addend = ir::kNoNode;
    ir::NodeId element_addend = ir::kNoNode; // any other
    // Addends that come with the matrix products. What is added by key is then one of them, and the
    // factors of keys are the first of key_values.
    std::vector<RowKeyProduct> products;
    ir::NodeId cap = ir::kNoNode;            // uses neither q, kv nor score
    // A read in element_addend, or in the whole score if there are no parts, that can be copied by
    // tiles (a dense bias): of floats or 16-bit numbers, never outside its buffer; its last index
    // is kv itself, and the others are q itself or depend on the head at most. For kernels that
    // keep tables in shared memory it may be the read of the 32-bit indices of a table instead.
    ir::NodeId bias_read = ir::kNoNode;
    analysis::Band bias_band; // of the elements that use the dense bias: band_of_use()
    // Values that are computed before the kernel for each key and each distance: first the addends,
    // then other costly values that depend on kv, or q - kv, alone.
    std::vector<ir::NodeId> key_values, distance_values;
    // Reads for each element that a kernel may serve from shared memory.
    StagedTables staged;
    bool aligns_tables = false; // the part of the key is constant in whole tiles
    // Reads of which a kernel copies tiles; a dense bias is then one of them.
    std::vector<ShiftedRead> shifted;
    // The addend by kind of key that a kernel adds with its matrix products. It is then not part of
    // element_addend.
    KeyKinds kinds;
    bool found() const { return multiplier != ir::kNoNode; }
    // Whether addends can be multiplied by log2(e) ahead of time, so that the logit is the exponent
    // itself.
    bool are_exponents() const {
        return found() && cap == ir::kNoNode && element_addend == ir::kNoNode;
    }
};

struct DecomposedMod {
    Mod mod; // with nodes for the parts
    ScoreParts parts;
};

// Limit on these products: two take a step of the matrix products.
inline constexpr std::size_t kMostRowKeyProducts = 4;

// Limits on vectors by key. Each takes shared memory, a load for both rows of a thread, and
// registers; kernels that need these for something else have few.
inline constexpr std::size_t kMostByKey = 8, kFewByKey = 3;

// Finds no parts if the score enters in another way, or not at all. key_width: of the 2-D key
// index, 0 for none; without one, elements that add nothing but products of rows and keys add
// nothing. most_by_key: of the vectors.
DecomposedMod decompose_score(const Mod& mod, int key_width = 0,
                              std::size_t most_by_key = kMostByKey);
// For kernels that keep tables in shared memory: the part of an address that depends on the key is
// tabulated rather than an index. copies_indices: a dense tensor of indices may be copied by tiles.
DecomposedMod decompose_score_with_tables(const Mod& mod, bool copies_indices = true);
// The same for kernels whose tiles of keys start where the digits by which tables are read do. No
// tables if their addresses depend on anything else.
DecomposedMod decompose_score_with_aligned_tables(const Mod& mod);
// For kernels that copy tiles of shifted reads, up to `most` of them.
DecomposedMod decompose_score_with_shifts(const Mod& mod, std::size_t most = kMostShiftedReads);
// For kernels that multiply by kinds of keys. No kinds if something else is added or read for each
// element.
DecomposedMod decompose_score_with_kinds(const Mod& mod);
// Returns what is computed for each element; kNoNode if nothing is.
ir::NodeId of_elements(const Mod& mod, const ScoreParts& parts);
// Whether the accumulators of the products can start with values from tables: an element adds
// nothing but what it computes from tables (which may use a copied index), and all slices fit.
bool starts_with_tables(const ir::Graph& graph, const ScoreParts& parts);
// Whether nothing is multiplied with the score.
bool multiplies_by_one(const ir::Graph& graph, const ScoreParts& parts);
// Whether, in addition, nothing is added except by the matrix products.
bool are_products(const ir::Graph& graph, const ScoreParts& parts);
// Whether addends may be divided by what multiplies products: a positive constant that does not
// change their size much.
bool can_divide_by_multiplier(const ir::Graph& graph, const ScoreParts& parts);
// Whether accumulators can start with what elements add, from a dense bias, aligned tables or
// shifted reads: beside it there are at most a number for the whole row, and what keys add or,
// beside a dense bias, a slope of the head.
bool starts_with_elements(const Mod& mod, const ScoreParts& parts);
// Whether matrix products can bring what is added by key. Whether nothing else changes the score,
// if they do, but a number for the whole row and a factor: one of the row, or of the head if keys
// add something, or a positive constant if there are products of rows and keys.
bool multiplies_key_addend(const Mod& mod, const ScoreParts& parts);
bool adds_keys_alone(const Mod& mod, const ScoreParts& parts);
// Whether products can be added to a function of the distance, beside which there is nothing but a
// number for the whole row and a positive constant factor.
bool can_start_with_distances(const ir::Graph& graph, const ScoreParts& parts);
// Whether products can bring what grows from key to key, beside which there is nothing but
// a number for the whole row and a constant factor; or what elements add, with which accumulators
// start, and a number for the whole row.
bool can_multiply_slope(const Mod& mod, const ScoreParts& parts);
// Whether all addends depend on positions through a slope of the head or a function of the
// distance, so that they are largest at an end of the keys or near the query.
bool adds_by_position(const Mod& mod, const ScoreParts& parts);
// Returns the 2-D key index for which most addends depend on one row or one column alone.
// parts_without: the parts without such an index.
KeyIndex2d key_index_2d(const Mod& mod, const ScoreParts& parts_without);

TabulatedValues tabulated_values(const DecomposedMod& decomposed);

// What matrix products can bring beside what elements add, with which accumulators then start.
struct BesideElements {
    bool starts = false; // accumulators do
    bool keys = false, slope = false;
    bool rows = false; // as offsets of exponents
    bool any() const { return keys || slope || rows; }
};
BesideElements beside_elements(const DecomposedMod& decomposed);

} // namespace flexc::passes
