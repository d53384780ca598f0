// What each read of a captured buffer has in common from element to element: THE place that decides
// how it can be read and its gradient summed.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "analysis/index_form.h"
#include "ir/program.h"

namespace flexc::passes {

struct Mod;

// By the map from (b, h, q, kv) to an address; the first that fits.
enum class ReadClass : std::uint8_t {
    constant, // b and h
    row,      // and q
    column,   // and kv
    // A function of b, h and q - kv: one address for each diagonal.
    distance_1d,
    // Of b, h and up to kMaxAxes differences of digits of a mixed radix: one address for each
    // diagonal of each block.
    grid_distance,
    dense_bias, // one index is q plus what is the same for a head, another kv likewise
    // Affine in q and kv, each address met once. One index may be clamped: beyond its bounds an
    // address is met by a run of a row's, or of a column's, elements.
    shifted,
    // A number that is known for a query, and one for a key, each in indices of its own or both in
    // a sum. One of the two at least is one of few; the other may be the position (a slice for each
    // query, as t[q_idx, kv_idx // W] has).
    pair_of_kinds,
    small_table, // any index whose range is bounded, by less than the lengths
    large_table  // anything else
};
inline constexpr std::size_t kMaxAxes = 3;
// Entries of a slice that are known to be more make a table large.
inline constexpr std::int64_t kMostSmallEntries = 16384;

// constant * sizes: how many there are.
struct Count {
    std::int64_t constant = 1;
    std::vector<std::uint32_t> sizes; // index into Program::sizes, sorted
    bool is_constant() const { return sizes.empty(); }
    friend bool operator==(const Count&, const Count&) = default;
};

// One index of a read, by the slice of the buffer that the elements of one head can meet: entries
// [first, first + entries), where first is `low`, or low + what of the index uses no position.
struct SliceIndex {
    std::int64_t low = 0;
    ir::Dim entries{.constant = 1};
    bool has_base = false; // first changes with b or h, or is the whole index
    bool is_inside = true; // no element's index is outside the slice
    // Of what the slice's entry follows from.
    analysis::Dependence uses;
};

// One index, where it is affine in q and kv inside of its clamps.
struct ShiftedIndex {
    analysis::Product q{0, {}}, kv{0, {}}; // what it gains from one query, one key, to the next
    ir::NodeId inside = ir::kNoNode;       // without clamps
    std::vector<ir::NodeId> least, most;   // the clamps, outermost first; they use no position
    bool is_clamped() const { return !least.empty() || !most.empty(); }
};

// Why a read is of no class above its own.
enum class Obstacle : std::uint8_t {
    none,
    term_of_sum,       // it changes with the counter of a sum
    uses_score,        // its address does
    other_positions,   // q and kv in other ways than differences of digits
    no_mixed_radix,    // differences of digits that are those of no one grid
    too_many_axes,     // more than kMaxAxes
    not_affine,        // a number of q and kv that is neither, inside of clamps
    no_single_address, // affine, and an address is met by several elements
    mixes_positions,   // q and kv enter one number together
    unbounded,         // by nothing but the sequences' lengths
    too_many_entries   // more than kMostSmallEntries
};

// What holds of a read for elements where the assumptions hold, which are about q alone or about kv
// alone: a union of rectangles.
struct ReadPiece {
    analysis::Assumptions where;
    ReadClass read_class = ReadClass::large_table;
    Obstacle obstacle = Obstacle::none;
    ir::NodeId culprit = ir::kNoNode; // the index that the obstacle is about
    analysis::Grid grid;              // of distance_1d and grid_distance
    std::vector<ShiftedIndex> shifts; // of dense_bias and shifted: one for each index
    Count query_kinds, key_kinds;     // of pair_of_kinds
    // Of what changes inside of a head: one for each index, and the product of their entries.
    std::vector<SliceIndex> slice;
    Count entries;
};

struct CapturedRead {
    ir::NodeId read = ir::kNoNode;
    ReadClass read_class = ReadClass::large_table; // of the piece furthest down the list
    std::vector<ReadPiece> pieces;                 // at least one; together all elements
    bool is_whole() const { return pieces.size() == 1; }
    // The piece that decides the class.
    const ReadPiece& decisive() const;
    // Which of b and h, and of the positions, the address uses.
    analysis::Dependence uses;
    // Parameters that digits are divided by: the class holds where each is at least 1.
    std::vector<ir::NodeId> positive;
};

// A real value that is a function of b, h and of differences of digits, while nothing that uses it
// is: what can be tabulated once for a head.
struct DifferenceValue {
    ir::NodeId node = ir::kNoNode;
    analysis::Grid grid;
    std::vector<ir::NodeId> reads; // captured reads inside, those of b and h alone too
};

// Fills Mod::captured_reads, of every read in mod.order, and Mod::difference_values, of the score;
// from the other facts.
void find_captured_reads(Mod& mod);

const CapturedRead* captured_read(const Mod& mod, ir::NodeId read);

// Whether a head's elements share few entries, and none of its dims is one of queries or keys.
bool is_table(const CapturedRead& read);

// Whether each element finds the read's offset by itself: kernels have what is read by distance or
// by a row or column of their 2-D key index, and dense biases, once for many elements. key_width:
// of that index; 0 for none.
bool has_offset_of_elements(const Mod& mod, ir::NodeId read, int key_width);

std::string_view name(ReadClass read_class);  // as in this enumeration
ReadClass class_before(ReadClass read_class); // the one above, whose obstacle a piece has

} // namespace flexc::passes
