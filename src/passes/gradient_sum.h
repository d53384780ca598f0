// How the gradient of a read is summed where all of a tile's elements are at hand.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

// By what the read's indices use.
enum class GradientSum : std::uint8_t {
    head,  // b and h: one sum while everything passes by
    batch, // h, q and kv alone: one for each element while sequences of a head pass by
    query, // and q
    key,   // and kv
    // And q - kv, or what passes through a value of these: the score's gradient, summed over
    // diagonals of a tile, times a function of the distance. Of differences of digits: over parts
    // of diagonals.
    distance,
    // The same, with q and kv // width, or kv % width: summed over keys in a row, or in a column,
    // of the 2-D key index that has `width` keys in a row.
    quotient,
    remainder,
    dense_bias, // of q and kv themselves: each element by itself, all of a tile at once
    table,      // sums of a number of q and one of kv: a tile meets few entries of a table
    shifted,    // affine in q and kv, along lines of a tile that are side by side in memory
    row,    // of q, or b and h alone, by passes/row_gradient.h, in a kernel that passes over rows
    element // anything else
};
// What a kernel does with whole tiles.
struct TileSums {
    int key_width = 0; // of that 2-D key index; 0 for none
    bool adds_bias_gradients = true;
    bool sums_tables = false; // where sums_tables() says that it may
    bool sums_grids = false;  // where sums_grids() says that it may
    bool sums_shifts = false; // and sums_shifts()
    // Nothing of the above, but what meets few entries, as tables; all else by element.
    bool sums_few_entries = false;
    bool sums_batches = false; // nothing but batch and head, where why_not_batches() is empty
};
GradientSum gradient_sum(const Mod& mod, const ReadGradient& gradient, TileSums tile = {});
// Whether d score_mod / d read and d score_mod / d score are the same everywhere.
bool is_gradient_of_score(const Mod& mod, const ReadGradient& gradient);
int count_sums_by(const Mod& mod, GradientSum sum, TileSums tile = {}); // of gradients
bool sums_by(const Mod& mod, GradientSum sum, TileSums tile = {});      // any gradient
// Whether tiles may sum gradients of tables: nothing else needs the warps that do.
bool sums_tables(const Mod& mod);
bool sums_shifts(const Mod& mod);
// Why blocks that have one sequence of a head after another cannot sum all gradients with one sum
// for an element; empty where they can.
std::string_view why_not_batches(const Mod& mod);
// How many gradients the generic backward sums as those of tables.
int count_few_entries(const Mod& mod);
// Whether they may sum these over parts of diagonals instead.
bool sums_grids(const Mod& mod);
// The width for which most gradients are summed by such a 2-D key index; 0 where none is.
int key_width_of_gradients(const Mod& mod);
// Those that use kv // key_width alone, beside b, h and q, and those that use kv % key_width.
std::vector<ir::NodeId> row_reads(const Mod& mod, int key_width);
std::vector<ir::NodeId> column_reads(const Mod& mod, int key_width);
// Whether the latter and their gradients are evenly spaced in memory from column to column; and
// whether all gradients that are summed by that 2-D key index are, from query to query.
bool are_columns_linear(const Mod& mod, int key_width);
bool are_queries_linear(const Mod& mod, int key_width);
// Whether all those reads are evenly spaced in both directions.
bool are_reads_linear(const Mod& mod, int key_width);
// What a backward kernel reads, and adds to, by a row or a column of a 2-D key index.
struct Index2dReads {
    int width = 0;                 // of the 2-D key index; 0: none
    int by_row = 0, by_column = 0; // reads
    bool sums_columns = false;     // gradients of such
    bool sums_are_linear = false;  // in memory, from query to query
    int column_bytes = 0;          // of the largest element that is read by column
};
Index2dReads index_2d_reads(const Mod& mod);
std::string_view name(GradientSum sum); // as in this enumeration
// How a gradient's tile is summed, for people.
std::string_view description(const ReadGradient& gradient, GradientSum sum);

} // namespace flexc::passes
