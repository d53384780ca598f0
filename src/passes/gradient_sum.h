// How a kernel that has all elements of a tile sums the gradient of a read.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// By what the read's indices depend on.
enum class GradientSum : std::uint8_t {
    head,  // b and h: one sum over the whole loop
    batch, // h, q and kv alone: a sum for each element, over all sequences of a head
    query, // and q
    key,   // and kv
    // Also q - kv: the score's gradient is summed over diagonals of a tile, then multiplied by a
    // function of the distance. For differences of digits, it is summed over parts of diagonals.
    distance,
    // Also q and kv // width, or q and kv % width: summed over the keys of a row, or of a column,
    // of the 2-D key index with `width` keys in a row.
    quotient,
    remainder,
    dense_bias,  // of q and kv themselves: each element by itself, all of a tile at once
    bias_beside, // the same, from the tile of dS, by the warps that sum tables
    table,       // sums of a number of q and one of kv: a tile meets few entries of a table
    shifted,     // affine in q and kv, along lines of a tile that are side by side in memory
    terms,       // of a sum's terms, one after another: over a tile, by what their index depends on
    row,    // of q, or b and h alone, by passes/row_gradient.h, in a kernel that passes over rows
    element // anything else
};
// How a kernel sums whole tiles.
struct TileSums {
    int key_width = 0; // of that 2-D key index; 0 for none
    bool adds_bias_gradients = true;
    bool sums_tables = false; // where sums_tables() says that it may
    bool adds_biases_beside = false; // and narrow dense biases, from the same tiles
    bool sums_grids = false;  // where sums_grids() says that it may
    bool sums_shifts = false; // and sums_shifts()
    bool weighs_distances = false; // and weighs_distances(): tiles beside dS are summed
    // Of tiles, only what has an entry_sum is summed, as tables.
    bool sums_few_entries = false;
    bool sums_batches = false; // nothing but batch and head, where why_not_batches() is empty
};
GradientSum gradient_sum(const Mod& mod, const ReadGradient& gradient, TileSums tile = {});
// Whether sums over diagonals of dS are all that the gradient takes of elements.
bool is_of_diagonals(const Mod& mod, const ReadGradient& gradient, const TileSums& tile);
// Whether a fused backward's elements compute the partial together with others: that of a sum's
// terms is computed in loops over these.
bool elements_have_partial(const Mod& mod, const ReadGradient& gradient, const TileSums& tile);
// Whether d score_mod / d read and d score_mod / d score are the same everywhere.
bool is_gradient_of_score(const Mod& mod, const ReadGradient& gradient);
// Whether it is the gradient of a sum's terms, of which each is a multiple of the same sums over
// diagonals.
bool is_of_terms_by_distance(const Mod& mod, const ReadGradient& gradient);
// Whether elements add some gradient of the terms of a sum in memory, one by one, before anything
// is summed over tiles.
bool adds_terms_by_element(const Mod& mod);
// Whether it adds up gradients of scores themselves, multiplied by a function of the place at most.
bool is_of_d_scores(GradientSum sum);
int count_sums_by(const Mod& mod, GradientSum sum, TileSums tile = {}); // of gradients
bool sums_by(const Mod& mod, GradientSum sum, TileSums tile = {});      // any gradient
// Whether tiles may sum gradients of tables (or of shifted reads): the warps that do so have no
// other sums.
bool sums_tables(const Mod& mod);
bool sums_shifts(const Mod& mod);
// Whether tables, or instead of them reads by distance, are ReadGradient::is_weighted.
bool weighs_tables(const Mod& mod);
bool weighs_distances(const Mod& mod);
// All ways in which a fused backward may sum the mod's gradients from tiles.
TileSums fused_sums(const Mod& mod);
// The same of the tiles that are tried first: those of a dense bias, or of its gradient, leave no
// memory for sums by a 2-D key index, and other sums of tiles no warps that add such a gradient.
TileSums usual_sums(const Mod& mod);
// Whether elements add so many gradients in memory one by one that a compile of a kernel with
// unrolled elements takes minutes, and the generic one is as fast. Dense biases beside tables
// count: the last of that kernel's ways to sum adds them so.
bool adds_many_by_element(const Mod& mod);
// Why a block that computes the sequences of a head one after another cannot keep one sum for each
// element for all gradients; empty if it can.
std::string_view why_not_batches(const Mod& mod);
// Number of sums by entries in the generic backward, of which each serves one gradient or several,
// and whether elements add anything but dS to some of them.
int count_few_entries(const Mod& mod);
bool weighs_entries(const Mod& mod);
// Whether a backward may sum gradients of tables over parts of diagonals instead.
bool sums_grids(const Mod& mod);
// The width of the 2-D key index by which most gradients are summed; 0 if none is.
int key_width_of_gradients(const Mod& mod);
// Reads that depend on kv // key_width alone (row_reads) or kv % key_width alone (column_reads),
// besides b, h and q.
std::vector<ir::NodeId> row_reads(const Mod& mod, int key_width);
std::vector<ir::NodeId> column_reads(const Mod& mod, int key_width);
// Whether column reads and their gradients are evenly spaced in memory from column to column, and
// whether all gradients summed by the 2-D key index are from query to query.
bool are_columns_linear(const Mod& mod, int key_width);
bool are_queries_linear(const Mod& mod, int key_width);
// Whether all row and column reads are evenly spaced in both directions.
bool are_reads_linear(const Mod& mod, int key_width);
// What a backward reads and adds by row or column of a 2-D key index.
struct Index2dReads {
    int width = 0;                 // of the 2-D key index; 0: none
    int by_row = 0, by_column = 0; // reads
    bool sums_columns = false;     // gradients of such
    bool sums_are_linear = false;  // in memory, from query to query
    int column_bytes = 0;          // of the largest element that is read by column
};
Index2dReads index_2d_reads(const Mod& mod);
std::string_view name(GradientSum sum); // as in this enumeration
// Describes for people how the gradient is summed.
std::string_view description(const ReadGradient& gradient, GradientSum sum);

} // namespace flexc::passes
