// Classifies reads of captured buffers by how their addresses vary from element to element. This is
// THE place that decides how a buffer can be read and its gradient summed.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "analysis/index_form.h"
#include "ir/program.h"

namespace flexc::passes {

struct Mod;

// By the map from (b, h, q, kv) to an address. The first class that fits is taken.
enum class ReadClass : std::uint8_t {
    constant, // b and h
    row,      // and q
    column,   // and kv
    // One address for each diagonal: depends on b, h and q - kv.
    distance_1d,
    // One address for each diagonal of each block: depends on b, h and up to kMaxAxes differences
    // of digits of a mixed radix.
    grid_distance,
    dense_bias, // one index is q plus what is the same for a head, another kv likewise
    // Affine in q and kv, with a different address for each element. One index may be clamped:
    // beyond its bounds, a run of elements of a row, or of a column, shares an address.
    shifted,
    // Indices (or sums in one index) of a number that depends on the query and one that depends on
    // the key. At least one of them takes few values (kinds); the other may be the position itself,
    // as in t[q_idx, kv_idx // W].
    pair_of_kinds,
    small_table, // any index whose range is bounded, by less than the lengths
    large_table  // anything else
};
inline constexpr std::size_t kMaxAxes = 3;
// A slice that is known to have more entries than this makes a table large.
inline constexpr std::int64_t kMostSmallEntries = 16384;

// A number of entries: constant * the product of the sizes.
struct Count {
    std::int64_t constant = 1;
    std::vector<std::uint32_t> sizes; // index into Program::sizes, sorted
    bool is_constant() const { return sizes.empty(); }
    friend bool operator==(const Count&, const Count&) = default;
};

// One index of a read and the entries of the buffer that elements of one head can meet: [first,
// first + entries). `first` is `low`, or `low` plus the part of the index that uses no position.
struct SliceIndex {
    std::int64_t low = 0;
    ir::Dim entries{.constant = 1};
    bool has_base = false; // first changes with b or h, or is the whole index
    bool is_inside = true; // no element's index is outside the slice
    // What the entry in the slice depends on.
    analysis::Dependence uses;
};

// An index that is affine in q and kv inside its clamps.
struct ShiftedIndex {
    analysis::Product q{0, {}}, kv{0, {}}; // what it gains from one query, one key, to the next
    ir::NodeId inside = ir::kNoNode;       // without clamps
    std::vector<ir::NodeId> least, most;   // the clamps, outermost first; they use no position
    bool is_clamped() const { return !least.empty() || !most.empty(); }
};

// Why a read is not in a better class than its own.
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

// What is known of a read for those elements for which the assumptions hold. Each assumption
// depends on q alone or on kv alone, so that the elements are a union of rectangles.
struct ReadPiece {
    analysis::Assumptions where;
    ReadClass read_class = ReadClass::large_table;
    Obstacle obstacle = Obstacle::none;
    ir::NodeId culprit = ir::kNoNode; // the index that the obstacle is about
    analysis::Grid grid;              // of distance_1d and grid_distance
    std::vector<ShiftedIndex> shifts; // of dense_bias and shifted: one for each index
    Count query_kinds, key_kinds;     // of pair_of_kinds
    // The slice that a head meets: one entry for each index, and their product.
    std::vector<SliceIndex> slice;
    Count entries;
};

struct CapturedRead {
    ir::NodeId read = ir::kNoNode;
    ReadClass read_class = ReadClass::large_table; // of the piece furthest down the list
    std::vector<ReadPiece> pieces;                 // at least one; together all elements
    bool is_whole() const { return pieces.size() == 1; }
    // The piece that determines the class.
    const ReadPiece& decisive() const;
    // Which of b, h, q and kv the address uses.
    analysis::Dependence uses;
    // Parameters by which digits are divided. The class holds only if each is at least 1.
    std::vector<ir::NodeId> positive;
};

// A real value that depends on b, h and differences of digits alone, and that no larger such value
// contains: it can be tabulated once for each head.
struct DifferenceValue {
    ir::NodeId node = ir::kNoNode;
    analysis::Grid grid;
    std::vector<ir::NodeId> reads; // captured reads inside, those of b and h alone too
};

// Fills Mod::captured_reads with every read in mod.order, and Mod::difference_values with those of
// the score, from the other facts.
void find_captured_reads(Mod& mod);

const CapturedRead* captured_read(const Mod& mod, ir::NodeId read);

// Whether the elements of a head share few entries, and none of the dims is that of queries or
// keys.
bool is_table(const CapturedRead& read);

// Whether each element of a head has an address of its own, of those to which the same assumptions
// apply.
bool has_own_addresses(const CapturedRead& read);

// Whether a kernel computes the offset of this read for each element, rather than once for many (as
// for reads by distance, by row or column of the 2-D key index, and dense biases). key_width: of
// the 2-D key index; 0 for none.
bool has_offset_of_elements(const Mod& mod, ir::NodeId read, int key_width);

std::string_view name(ReadClass read_class);  // as in this enumeration
ReadClass class_before(ReadClass read_class); // the one above, whose obstacle a piece has

} // namespace flexc::passes
