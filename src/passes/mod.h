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

// A read whose address is affine in q and kv, along a line of elements that are side by side in the
// last dim; by passes/shifted_read.h.
struct ShiftedRead {
    ir::NodeId read = ir::kNoNode;
    bool by_key = false; // a line is a key's, and queries are along it
    // What the last index gains from one query, and one key, to the next: along a line, 1 or -1.
    int query_step = 0, key_step = 0;
    ir::NodeId index = ir::kNoNode; // the last index without its clamp
    // What the clamp bounds it by; kNoNode: nothing. Beyond other ends are no elements.
    ir::NodeId least = ir::kNoNode, most = ir::kNoNode;
    bool is_clamped() const { return least != ir::kNoNode || most != ir::kNoNode; }
};

// One read of a grad buffer, and d score_mod / d (what it read). In the term of a sum, both are for
// each value of its counter.
struct ReadGradient {
    ir::NodeId read = ir::kNoNode;
    ir::NodeId partial = ir::kNoNode;
    // Of reads that are the same for a whole row: whether the partial is too, and whether it is
    // factor * score + addend, both the same for a whole row.
    bool is_of_row = false, is_line_of_row = false;
    // By passes/table_gradient.h. Of few entries are also reads by distance, by q or by kv;
    // is_separable: of these, whether each index is a number of the query plus one of the key.
    bool is_of_table = false, is_of_few_entries = false, is_separable = false;
    // By passes/shifted_read.h: each element adds a constant multiple of dS to its own place, or
    // beyond a clamp to that of its line.
    bool is_shifted = false;
    bool is_of_grid = false; // by passes/grid_gradient.h; it is of a table too
    // By passes/gradient_factor.h: what sums of d loss / d score are multiplied with. Of a read by
    // distance or of a whole head, they are over diagonals and this is a function of the distance;
    // of a table it is one number for a head. kNoNode where there is none, or they are the
    // gradient.
    ir::NodeId sum_factor = ir::kNoNode;
};

// Where digits of q + q_offset and kv + kv_offset begin: kv's digits from there on borrow one where
// (q + q_offset) % width < (kv + kv_offset) % width.
struct DigitPlace {
    std::int64_t width = 1, q_offset = 0, kv_offset = 0;
    friend bool operator==(const DigitPlace&, const DigitPlace&) = default;
};

struct Mod {
    ir::Program program;            // graph holds every node below
    ir::NodeId score = ir::kNoNode; // modified score
    ir::NodeId mask = ir::kNoNode;  // visible
    // Of a row, see passes/sink.h; kNoNode where there is none.
    ir::NodeId sink = ir::kNoNode;
    ir::NodeId d_score = ir::kNoNode; // d score_mod / d score; kNoNode without backward
    std::vector<ReadGradient> gradients;
    std::vector<ReadGradient> sink_gradients; // d sink / d (what each read of it gave)
    // No gradient that a 2-D key index could sum is not a table's, by passes/table_gradient.h.
    bool tables_take_all = false;
    // Where some gradient is_shifted: what the score reads so, by passes/shifted_read.h.
    std::vector<ShiftedRead> shifted_reads;
    // Elements of one distance whose digits borrow alike add to the same places of all tables;
    // empty where they do not.
    std::vector<DigitPlace> digit_places;
    // The modified score is factor * score + addend, both the same for a whole row: no element of a
    // row is infinite or NaN unless the row is, and the program hides none.
    bool is_line_of_row = false;
    analysis::Band band; // of the mask
    analysis::MaskTier mask_tier = analysis::MaskTier::constant;
    // True where a read that is taken (visible, on a branch that is taken) is outside its buffer;
    // kNoNode unless reporting was asked for.
    ir::NodeId out_of_range = ir::kNoNode;
    bool deterministic = false; // gradients have the same bits on every run

    // One entry per node, by passes/facts.h.
    std::vector<analysis::Dependence> dependence;
    std::vector<ir::NodeId> counters; // see ir::counters_of
    std::vector<analysis::AffineForm> affine;
    std::vector<bool> of_distance; // uses q and kv through their difference alone
    std::vector<analysis::KeyUses> key_uses;
    analysis::Ranges ranges;
    std::vector<Place> place;
    // Nodes that some root needs, operands first.
    std::vector<ir::NodeId> order;
    // Of these, by passes/facts.h too.
    std::vector<CapturedRead> captured_reads;
    std::vector<DifferenceValue> difference_values;
};

// The launch arguments that generated code reads, in order: each is one 8-byte word, so that host
// code can fill them for both backends. A pointer, an int64, or a float / int64 / bool param value.
struct ArgumentSlot {
    enum class Kind : std::uint8_t {
        buffer_data,     // index = buffer
        buffer_extent,   // index = buffer, dim
        buffer_stride,   // index = buffer, dim; in elements
        gradient_data,   // index = buffer; f32, or in deterministic kernels what sums it
        gradient_stride, // index = buffer, dim; in elements
        param,           // index = param; float in the low four bytes, or int64, or 0 / 1
        size,            // index = size
        out_of_range,    // int32*
        first_kv_head,   // over batch and heads of keys: where a launch starts that has not all
        sequences,       // of programs with other layouts than dense: see common/sequences.h
        key_numbers,     // likewise, of KeyTable
        key_table_size,
    };
    Kind kind;
    std::uint32_t index = 0;
    std::uint32_t dim = 0;
    friend bool operator==(const ArgumentSlot&, const ArgumentSlot&) = default;
};
// More than any program has: five kinds of words of each buffer, and five of none.
inline constexpr std::size_t kMaxArgumentWords =
    ir::kMaxBuffers * (2 + 3 * std::size_t{kMaxDims}) + ir::kMaxParams + ir::kMaxSizes + 5;
// Whether the score mod or the sink has a gradient for this buffer.
bool has_gradient(const Mod& mod, std::uint32_t buffer);
// Whether the sink has one.
bool has_sink_gradient(const Mod& mod, std::uint32_t buffer);
// Whether some gradient belongs to the terms of a sum.
bool has_gradients_of_terms(const Mod& mod);
// Only what the program uses. Gradient slots are there for grad buffers when mod has gradients.
std::vector<ArgumentSlot> argument_slots(const Mod& mod);
// Which of them it is: the index of its word. Their number where it is none of them.
std::size_t word_of(const std::vector<ArgumentSlot>& slots, const ArgumentSlot& slot);
std::string slot_name(const ArgumentSlot& slot, const ir::Program& program); // "slopes_stride_0"

} // namespace flexc::passes
