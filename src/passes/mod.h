// What the backends compile: a simplified program, its joint derivative, and the facts they use.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/affine.h"
#include "analysis/band.h"
#include "analysis/dependence.h"
#include "analysis/key_index_2d.h"
#include "analysis/range.h"
#include "analysis/tile_class.h"
#include "ir/program.h"
#include "passes/captured_read.h"

namespace flexc::passes {

// Where a value is computed. Each place is inside the one before it; row and column are siblings.
enum class Place : std::uint8_t {
    launch,  // uses none of b, h, q, kv, score: constants, params, sizes
    head,    // b, h
    row,     // b, h, q
    column,  // b, h, kv
    element, // q and kv together, or score
};
std::string_view name(Place place);

// A read whose address is affine in q and kv, so that a line of elements is contiguous in the last
// dim. Found by passes/shifted_read.h.
struct ShiftedRead {
    ir::NodeId read = ir::kNoNode;
    bool by_key = false; // a line belongs to a key and runs along queries; otherwise vice versa
    // Change of the last index from one query, and from one key, to the next: along a line, 1 or
    // -1.
    int query_step = 0, key_step = 0;
    ir::NodeId index = ir::kNoNode; // the last index without its clamp
    // Bounds of the clamp; kNoNode for an end without one, beyond which there are no elements.
    ir::NodeId least = ir::kNoNode, most = ir::kNoNode;
    bool is_clamped() const { return least != ir::kNoNode || most != ir::kNoNode; }
};

// What elements add to the entries of a table, or of a read by distance, where a tile meets few of
// them: nothing is summed so; dS, a constant multiple of it, or nothing; or any other number, of
// which a mod has one.
enum class EntrySum : std::uint8_t { none, d_scores, weighted };

// A read of a grad buffer, and the derivative d score_mod / d (what it read). In the term of a sum,
// both exist for each value of its counter.
struct ReadGradient {
    ir::NodeId read = ir::kNoNode;
    ir::NodeId partial = ir::kNoNode;
    // For reads that are constant along a row: whether the partial is too, and whether it is
    // factor * score + addend with a factor and an addend that are.
    bool is_of_row = false, is_line_of_row = false;
    // Set by passes/table_gradient.h. Reads by distance are of tables only beside others that are.
    // is_separable: a read of a table whose indices each are a number of the query plus one of the
    // key.
    bool is_of_table = false, is_separable = false;
    // Set by passes/table_gradient.h too: how a generic kernel sums it on chip, entry by entry.
    EntrySum entry_sum = EntrySum::none;
    // Set by passes/table_gradient.h too: such a table, or a read by distance, to which elements
    // add no multiple of dS. All of a mod's have the same partial.
    bool is_weighted = false;
    // Set by passes/shifted_read.h: each element adds a constant multiple of dS to a place of its
    // own or, beyond a clamp, to the place of its line.
    bool is_shifted = false;
    bool is_of_grid = false; // set by passes/grid_gradient.h; implies is_of_table
    // Set by passes/gradient_factor.h: the factor of sums of d loss / d score. For a read by
    // distance, of a whole head or of a sum's terms, sums are over diagonals and the factor is a
    // function of the distance (and of the term); for a table, it is one number for a head. kNoNode
    // if no factor exists, or if the sums are the gradient (of terms, the factor is 1 then).
    ir::NodeId sum_factor = ir::kNoNode;
    // Set by it too, beside such a number of a table: 0 for elements that add nothing, else 1.
    // kNoNode if all add, or if passes::table_choice() finds it without.
    ir::NodeId choice = ir::kNoNode;
    // Set by passes/term_gradient.h for a read of a sum's terms that has no sum_factor: the partial
    // is the product of these, of which the first is one number for a head and term. Then a kernel
    // may sum d loss / d (modified score) times the second over its tiles.
    ir::NodeId head_factor = ir::kNoNode, element_factor = ir::kNoNode;
};

// A place at which digits of q + q_offset and kv + kv_offset begin. In their difference, the digits
// from there on are lower by one (a borrow) if (q + q_offset) % width < (kv + kv_offset) % width.
struct DigitPlace {
    std::int64_t width = 1, q_offset = 0, kv_offset = 0;
    friend bool operator==(const DigitPlace&, const DigitPlace&) = default;
};

// A launch argument that generated code reads: one 8-byte word, so that host code can fill it for
// both backends. It is a pointer, an int64, or the value of a float / int64 / bool param.
struct ArgumentSlot {
    enum class Kind : std::uint8_t {
        buffer_data,     // index = buffer
        buffer_extent,   // index = buffer, dim
        buffer_stride,   // index = buffer, dim; in elements
        gradient_data,   // index = buffer; f32, or the exact sums of deterministic kernels
        gradient_stride, // index = buffer, dim; in elements
        param,           // index = param; float in the low four bytes, or int64, or 0 / 1
        size,            // index = size
        out_of_range,    // int32*
        first_kv_head,   // over batch and KV heads: the first one of a launch for a part of them
        sequences,       // only for layouts other than dense: see common/sequences.h
        key_numbers,     // likewise: KeyTable::numbers
        key_table_size,
        reciprocal,   // index = divisor, see passes/launch_divisor.h: Reciprocal
        divisor_sign, // index = divisor: -1, 0 or 1
    };
    Kind kind;
    std::uint32_t index = 0;
    std::uint32_t dim = 0;
    friend bool operator==(const ArgumentSlot&, const ArgumentSlot&) = default;
};

struct Mod {
    ir::Program program;            // graph holds every node below
    ir::NodeId score = ir::kNoNode; // modified score
    ir::NodeId mask = ir::kNoNode;  // whether an element is visible
    // The sink of a row, see passes/sink.h; kNoNode if there is none.
    ir::NodeId sink = ir::kNoNode;
    ir::NodeId d_score = ir::kNoNode; // d score_mod / d score; kNoNode without backward
    std::vector<ReadGradient> gradients;
    std::vector<ReadGradient> sink_gradients; // d sink / d (what each read of it gave)
    // Whether every gradient that a 2-D key index could sum is a table's, by
    // passes/table_gradient.h.
    bool tables_take_all = false;
    // The shifted reads of the score, by passes/shifted_read.h; only if some gradient is_shifted.
    std::vector<ShiftedRead> shifted_reads;
    // The shifted read without clamps that a fused backward may copy by tiles, where there is no
    // dense bias; of none, its read is kNoNode.
    ShiftedRead shifted_bias;
    // Elements of the same distance with the same borrows at these places add to the same places of
    // all tables; empty if there are no such places.
    std::vector<DigitPlace> digit_places;
    // Whether the modified score is factor * score + addend, both constant along a row. Then no
    // element is infinite or NaN unless its whole row is, and the program hides none.
    bool is_line_of_row = false;
    analysis::Band band; // of the mask
    analysis::MaskTier mask_tier = analysis::MaskTier::constant;
    // Node that is true if a read whose value is used (visible, on a branch that is taken) is
    // outside its buffer; kNoNode unless reporting was requested.
    ir::NodeId out_of_range = ir::kNoNode;
    bool deterministic = false; // gradients have the same bits on every run
    // If one backward kernel would sum some gradients element by element, the mods of several that
    // share them, by passes/gradient_passes.h; none if one sums all.
    std::vector<Mod> gradient_passes;
    // If elements compute entries of some tables themselves, the mods of several kernels of which
    // one sums those alone; else none.
    std::vector<Mod> entry_passes;
    // The mod of calls that keep indices inside of their buffers, by passes/inside_calls.h; none if
    // there is nothing that they alone can tell.
    std::vector<Mod> inside_calls;
    // Of such a mod: the reads whose indices are taken to be inside, and those by kinds of which
    // each call is taken to have few.
    std::vector<ir::NodeId> inside_reads, few_kinds;
    // Of all these mods, the arguments of the whole program, which all of its kernels have; else
    // empty.
    std::vector<ArgumentSlot> arguments;

    // One entry per node, by passes/facts.h.
    std::vector<analysis::Dependence> dependence;
    std::vector<ir::NodeId> counters; // see ir::counters_of
    std::vector<analysis::AffineForm> affine;
    std::vector<bool> of_distance; // uses q and kv only through their difference
    std::vector<analysis::KeyUses> key_uses;
    analysis::Ranges ranges;
    std::vector<Place> place;
    // The nodes that some root needs, operands first.
    std::vector<ir::NodeId> order;
    // Reads and differences among these nodes, by passes/facts.h too.
    std::vector<CapturedRead> captured_reads;
    std::vector<DifferenceValue> difference_values;
};

inline constexpr std::size_t kMaxLaunchDivisors = 16;
// An upper bound for any program: five kinds of words of each buffer, two of each divisor, and five
// others.
inline constexpr std::size_t kMaxArgumentWords = ir::kMaxBuffers * (2 + 3 * std::size_t{kMaxDims}) +
                                                 ir::kMaxParams + ir::kMaxSizes +
                                                 2 * kMaxLaunchDivisors + 5;
// Whether the score mod or the sink has a gradient for this buffer.
bool has_gradient(const Mod& mod, std::uint32_t buffer);
// Whether the sink has a gradient for this buffer.
bool has_sink_gradient(const Mod& mod, std::uint32_t buffer);
// Whether some gradient belongs to the terms of a sum.
bool has_gradients_of_terms(const Mod& mod);
// Returns the arguments that the program uses, in order. Grad buffers have gradient slots if the
// mod has gradients.
std::vector<ArgumentSlot> argument_slots(const Mod& mod);
// Returns the index of the slot's word, or the number of slots if it is none of them.
std::size_t word_of(const std::vector<ArgumentSlot>& slots, const ArgumentSlot& slot);
std::string slot_name(const ArgumentSlot& slot, const ir::Program& program); // "slopes_stride_0"

} // namespace flexc::passes
