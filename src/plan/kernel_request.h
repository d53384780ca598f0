// What is asked of a kernel: everything that the choice of its configuration depends on.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "flexc/types.h"
#include "passes/decompose.h"
#include "passes/gradient_sum.h"
#include "passes/table_gradient.h"
#include "passes/term_gradient.h"
#include "plan/element_sums.h"
#include "plan/schedule.h"
#include "plan/work.h"

namespace flexc::plan {

enum class KernelKind : std::uint8_t {
    forward,
    delta,          // row sums of d_out * o, before the others of a backward
    backward_dq,    // dq, beside backward_dkdv
    backward_dkdv,  // dk, dv and gradients of buffers
    backward_fused, // all of these in one kernel
    convert,        // dq, from its f32 accumulator
    tabulate,       // values by distance q - kv
    fold,           // gradients of what these values read, from sums over diagonals of dS
    block_mask,     // which tiles a mask shows
    lengths,        // records of requests, from arrays of lengths on the device
    round_sums,     // gradients of buffers in f32, from exact sums
    round_gradients // gradients of buffers in their own types, from f32
};

// What is known of the sequences of a call.
struct SequenceForm {
    bool is_ragged = false; // queries and keys of all requests are packed
    // KeyLayout::things ("pages") if queries are ragged and keys are not in order; else empty.
    std::string_view scattered_in = {};
    bool has_entry_scales = false; // each entry of the key cache has scales of its own
    int most_rows = 0;             // none has more queries or more keys; 0 for any number
    int least_rows = 0;            // with most_rows: none has fewer queries
    bool has_few_queries = false;  // at most kMostFewRows rows of a call's queries share keys
};

// How a kernel knows which keys a query sees.
struct MaskForm {
    bool has_block_mask = false; // a block mask says which tiles are visited
    bool has_band = false;       // the mask is bounded by a band
    bool has_window = false;     // by one with both ends
};

// Estimates of what is computed, in instructions.
struct Work {
    int element_instructions = 0; // plan::element_instructions()
    int read_instructions = 0;    // plan::read_instructions(), without the mask
    ScoreWork of_score;           // plan::score_work()
    bool is_long = false;         // plan::is_long()
    // Of a fused backward alone; each is what the function of this name in plan/work.h says.
    int row_instructions = 0, copied_instructions = 0;
    bool is_large = false, takes_roots = false;

    bool computes_much() const { return element_instructions > kFewInstructions; }
    bool reads_much() const { return read_instructions > kFewInstructions; }
};

// What a forward may do with the score mod as passes::decompose_score() decomposes it. Members
// named like a function of passes/decompose.h are what it returns.
struct PlainTerms {
    int bias_bytes = 0; // of an element of ScoreParts::bias_read, copied by tiles; 0 for none
    passes::TabulatedValues tabulated;
    ElementSums sums;
    int score_instructions = 0; // of what elements compute of their scores themselves
    bool multiplies_key_addend = false, adds_keys_alone = false, adds_by_position = false;
    bool can_start_with_distances = false, can_multiply_slope = false;
    int row_key_products = 0;           // passes::ScoreParts::products
    passes::BesideElements beside_bias; // beside the dense bias
};

// By the 2-D key index, of which tiles of keys should be whole rows.
struct Index2dTerms {
    passes::KeyIndex2d keys;
    passes::TabulatedValues tabulated;
    ElementSums sums;
    int score_instructions = 0; // as of PlainTerms
    int element_reads = 0;      // that each element reads from memory
};

// By kinds of keys (passes::KeyKinds), whose addends products may bring.
struct KindTerms {
    int count = 0;                // of kinds; 0 for none
    bool are_of_pairs = false;    // of a query and a key
    bool are_added_alone = false; // apart from them, nothing changes the scores
    int most_bound = 0;           // entries of a table whose extent a call binds; 0 for none
    passes::TabulatedValues tabulated;
};

// With tables that the forward may keep in shared memory.
struct TableTerms {
    std::vector<std::int64_t> entries; // of each table; 0 if known only at a call
    bool can_start = false; // accumulators may start with entries, to which MMAs add the products
    int bias_bytes = 0;     // as of PlainTerms; the copied tile may be one of indices instead
    bool copies_indices = false; // it is one of indices of a table
    // Some index of a table is more than a number of the query plus one of the key, so that a part
    // of it is computed for each element.
    bool computes_indices = false;
    int element_instructions = 0; // as of Work, of what is left to elements
    int score_instructions = 0;   // as of PlainTerms
    int element_reads = 0;        // that each element reads from memory
    passes::TabulatedValues tabulated;
    ElementSums sums;

    bool computes_much() const { return element_instructions > kFewInstructions; }
};

// A size of key tiles that are aligned with the tables in shared memory. The next tile starts
// `step` keys after a tile's first key.
struct AlignedTile {
    int keys = 0, step = 0;
};

// With tables with which tiles of keys may be aligned.
struct AlignedTableTerms {
    std::vector<AlignedTile> tiles; // those for which passes::aligned_tables() covers all tables
    passes::BesideElements beside;
    passes::TabulatedValues tabulated;
    ElementSums sums;
    int score_instructions = 0; // as of PlainTerms
};

// The copied tile of a shifted read.
struct ShiftedTile {
    bool by_key = false;   // its lines are keys; otherwise queries
    int element_bytes = 0; // bytes of an element
};

// With the shifted reads that a forward copies by tiles.
struct ShiftedTerms {
    std::vector<ShiftedTile> tiles;
    bool have_ends = false; // passes::have_ends()
    passes::TabulatedValues tabulated;
    passes::BesideElements beside;
    ElementSums sums;
    int score_instructions = 0; // as of PlainTerms
};

// What a forward may do with each decomposition of the score mod, by the names of Decomposition.
struct ScoreTerms {
    PlainTerms plain;
    Index2dTerms by_index_2d;
    KindTerms by_kinds;
    TableTerms with_tables;
    AlignedTableTerms with_aligned_tables;
    std::vector<ShiftedTerms> with_shifts; // first the most reads, down to a single one
};

// The derivative of the score mod with respect to the score, and what a backward evaluates with it.
struct ScoreDerivative {
    bool uses_score = false;
    bool is_costly = false;        // it does not, and each element computes much for it
    bool computes_rows = false;    // some value is computed or read for each query
    bool reads_rows = false;       // some value is read for each query
    bool computes_columns = false; // some value is computed or read for each key
};

// The bias that a fused backward copies by tiles, and the gradients of dense ones that it adds by
// tiles.
struct DenseBias {
    int bytes = 0; // of an element of passes::copied_bias_of_score(); 0 for none
    bool is_shifted = false, is_by_key = false; // it is Mod::shifted_bias, by key
    bool adds_gradients = false; // some are summed by GradientSum::dense_bias
    bool has_gradient_of_score = false; // passes::are_biases_of_scores()
    bool has_narrow_gradient = false;   // passes::are_biases_narrow(): 16-bit gradients
};

// Gradients of buffers. by_X: whether the kernel sums some as passes::GradientSum::X says.
struct BufferGradients {
    bool any = false;
    bool are_alone = false; // dq, dk and dv are computed by another kernel
    bool vary = false;      // some read differs within a head and is not ReadGradient::is_of_row
    bool by_element = false, by_distance = false, by_table = false, by_shift = false;
    bool by_batch = false;
    bool weighs_tables = false;             // some by_table are ReadGradient::is_weighted
    bool weighs_distances = false;          // some by_distance are ReadGradient::is_weighted
    bool sums_kinds_beside = false;         // of several tables, products may sum one
    bool adds_biases_beside = false;        // by_bias_beside
    passes::EntryCount entries_of_elements; // passes::entries_of_elements()
    bool has_sums_beside_entries = false;   // passes::has_sums_beside_entries()
    int by_query = 0;                       // how many are summed so
    bool by_terms = false;
    // passes::count_term_reads() of those that a specialized backward sums by tiles, and a generic
    // one.
    passes::TermReads term_reads, generic_term_reads;
    int grid_places = 0;         // number of Mod::digit_places if grids may be summed, else 0
    int few_entries = 0;         // passes::count_few_entries()
    bool weighs_entries = false; // passes::weighs_entries()
    bool adds_many_entries =
        false; // some read differs within a head and has no ReadGradient::entry_sum
    bool partials_use_score = false; // d score_mod / d (some read) uses the score
    bool partials_are_wide = false;  // an element computes such a derivative with 64-bit integers
    passes::Index2dReads index_2d;   // read and summed by row or column of a 2-D key index
};

struct KernelRequest {
    KernelKind kind = KernelKind::forward;
    int arch = 80; // compute capability times ten: 80, 86, 90, 100, 120
    // The target has the instructions of this architecture alone (sm_90a, not sm_90): Target.
    bool has_own_instructions = true;
    DType dtype = DType::bf16;          // of queries
    std::optional<DType> kv_dtype = {}; // of keys and values, if it differs
    int head_dim = 64, head_dim_v = 64;
    bool has_score_mod = false;
    SequenceForm sequences;
    MaskForm mask;
    Work work;
    ScoreTerms terms; // of a forward
    // Of a backward.
    ScoreDerivative derivative;
    ElementSums sums;
    DenseBias bias;
    BufferGradients gradients;

    bool reports_out_of_range = false;
    bool deterministic = false;
    ir::NodeId shared_value = ir::kNoNode;        // passes::shared_value()
    std::optional<ForwardSchedule> schedule = {}; // requested by the caller; overrides the choice
    // Why only the generic kernels can be used; empty if others can too.
    std::string_view generic_because;

    // The derivative is multiplied into P, so that an element is evaluated once: it uses the score
    // or is costly, and no buffer has a gradient.
    bool folds_derivative() const {
        return (derivative.uses_score || derivative.is_costly) && !gradients.any;
    }
};

// Up to so many rows, a block for short sequences has room beside its tiles for the values that
// sequences of a head share. Those of more rows are computed for each sequence.
inline constexpr int kMostRowsWithValues = 64;

} // namespace flexc::plan
