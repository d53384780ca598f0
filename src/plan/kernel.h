// One kernel of a plan: what is asked of it, and what is fixed in it before it is compiled.
#pragma once

#include <any>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/block_mask.h"
#include "flexc/types.h"
#include "passes/decompose.h"
#include "passes/gradient_sum.h"
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
    expand,         // tabulates values by distance q - kv
    fold,           // gradients of what these values read, from sums over diagonals of dS
    block_mask,     // which tiles a mask shows
    lengths,        // records of requests, from arrays of lengths on the device
    round_sums,     // gradients of buffers in f32, from exact sums
    round_gradients // gradients of buffers in their own types, from f32
};

// The copied tile of a shifted read.
struct ShiftedTile {
    bool by_key = false;   // its lines are keys; otherwise queries
    int element_bytes = 0; // bytes of an element
};

// The shifted reads that a forward copies by tiles, and what it tabulates besides.
struct ShiftedTiles {
    std::vector<ShiftedTile> tiles;
    bool have_ends = false; // passes::have_ends()
    passes::TabulatedValues tabulated;
    passes::BesideElements beside;
};

// A size of key tiles that are aligned with the tables in shared memory. The next tile starts
// `step` keys after a tile's first key.
struct AlignedTile {
    int keys = 0, step = 0;
};

// Up to so many rows, a block for short sequences has room beside its tiles for the values that
// sequences of a head share. Those of more rows are computed for each sequence.
inline constexpr int kMostRowsWithValues = 64;

// Everything that the choice of a configuration depends on.
struct KernelRequest {
    KernelKind kind = KernelKind::forward;
    int arch = 80; // compute capability times ten: 80, 86, 90, 100, 120
    DType dtype = DType::bf16;
    int head_dim = 64;
    int head_dim_v = 64;
    std::optional<DType> kv_dtype = {}; // of keys and values, if it differs from dtype
    bool has_entry_scales = false;      // each entry of the key cache has scales of its own
    bool has_score_mod = false;
    bool reports_out_of_range = false;
    // Bytes of an element of the dense bias that is copied to shared memory, 0 for none. That bias
    // is ScoreParts::bias_read; in the fused backward, passes::dense_bias_of_score().
    int bias_bytes = 0;
    // How gradients of buffers are summed, by passes::GradientSum.
    bool adds_bias_gradients = false;  // some by dense_bias
    bool biases_are_of_scores = false; // passes::are_biases_of_scores()
    bool biases_are_narrow = false;    // passes::are_biases_narrow(): 16-bit gradients
    bool adds_elements = false;        // some by element
    bool sums_distances = false;       // some by distance
    bool sums_tables = false;          // some by table
    bool sums_shifts = false;          // some by shifted
    // Some gradient differs within a head and is not one of the few_entries.
    bool adds_many_entries = false;
    int few_entries = 0;         // passes::count_few_entries()
    int grid_places = 0;         // number of Mod::digit_places if grids may be summed, else 0
    int query_sums = 0;          // number of gradients summed by query
    bool has_gradients = false;  // some buffer has a gradient
    bool gradients_vary = false; // some gradient differs within a head and is not of a row
    bool derivative_uses_score = false; // d score_mod / d score uses the score
    // The derivative uses the score and no buffer has a gradient, so it is multiplied into P.
    bool folds_derivative = false;
    bool partials_use_score = false; // d score_mod / d (some read) uses the score
    bool partials_are_wide = false;  // an element computes such a derivative with 64-bit integers
    bool computes_rows = false;      // the backward computes or reads some value for each query
    bool computes_columns = false;   // the backward computes or reads some value for each key
    // The 2-D key index of the score mod. Tiles of keys should be whole rows of it.
    passes::KeyIndex2d key_index_2d;
    // What is tabulated in each of the forward's decompositions: the plain one, the one by the 2-D
    // key index, those with tables and with aligned tables on chip, and the one by kinds of keys.
    passes::TabulatedValues tabulated, tabulated_by_index_2d, tabulated_with_tables,
        tabulated_with_aligned_tables, tabulated_with_kinds;
    // passes::multiplies_key_addend() and passes::adds_keys_alone() of the plain decomposition.
    bool multiplies_key_addend = false, adds_keys_alone = false;
    int row_key_products = 0;      // passes::ScoreParts::products of the same
    bool adds_by_position = false; // passes::adds_by_position() of the plain decomposition
    // passes::can_start_with_distances() and passes::can_multiply_slope() of the same.
    bool can_start_with_distances = false, can_multiply_slope = false;
    // passes::beside_elements() with a dense bias, and with aligned tables.
    passes::BesideElements beside_bias, beside_aligned_tables;
    bool adds_kinds_alone = false; // apart from products by key_kinds, nothing changes the scores
    int key_kinds = 0;             // kinds of keys whose addends QK may multiply; 0 for none
    bool kinds_are_of_pairs = false; // of a query and a key: passes::KeyKinds::are_of_pairs
    // Sets of shifted reads that the forward may copy: first the largest, down to a single read.
    std::vector<ShiftedTiles> shifts;
    // Entries of each table that the forward may keep on chip; 0 if known only at a call.
    std::vector<std::int64_t> table_entries;
    // The key tiles for which passes::aligned_tables() covers all tables.
    std::vector<AlignedTile> aligned_tiles;
    // Accumulators may start with the entries of tables, so that MMAs add the products to these.
    bool starts_with_tables = false;
    // As bias_bytes, if tables are on chip: the copied tile may hold indices of a table instead.
    int bias_bytes_with_tables = 0;
    bool copies_table_indices = false; // that tile holds indices
    // Some index of a table is more than a number of the query plus one of the key, so that a part
    // of it is computed for each element.
    bool computes_table_indices = false;
    passes::Index2dReads index_2d_reads; // of the fused backward
    bool has_block_mask = false;         // a block mask says which tiles are visited
    bool has_window = false;             // the mask is bounded by a band with both ends
    bool is_ragged = false;              // queries and keys of all requests are packed
    // KeyLayout::things ("pages") if queries are ragged and keys are not in order; else empty.
    std::string_view scattered_in = {};
    // The target has the instructions of this architecture alone (sm_90a, not sm_90): Target.
    bool has_own_instructions = true;
    // Why only the generic kernels can be used; empty if others can too.
    std::string_view generic_because;
    int element_instructions = 0; // plan::element_instructions()
    int read_instructions = 0;    // plan::read_instructions(), without the mask
    int row_instructions = 0;     // plan::row_instructions(), for the fused backward
    ScoreWork score_work;         // plan::score_work()
    bool is_long = false;         // plan::is_long()
    int copied_instructions = 0;  // plan::copied_instructions(), for the fused backward
    bool is_large = false;        // plan::is_large(), for the fused backward
    bool deterministic = false;
    // No sequence of a call has more queries or more keys than this; 0 for any number.
    int most_rows = 0;
    bool has_few_queries = false; // at most kMostFewRows rows of a call's queries share keys
    ir::NodeId shared_value = ir::kNoNode;        // passes::shared_value()
    bool sums_batches = false;                    // some gradient is summed by GradientSum::batch
    std::optional<ForwardSchedule> schedule = {}; // requested by the caller; overrides the choice

    bool computes_much() const { return element_instructions > kFewInstructions; }
    bool reads_much() const { return read_instructions > kFewInstructions; }
};

// Which of a program's decompositions of its score mod a kernel takes, see Program::decomposed().
// none: it evaluates the mod whole.
enum class Decomposition : std::uint8_t {
    none,
    plain,
    by_index_2d,
    by_kinds,
    with_tables,
    with_aligned_tables,
    with_shifts
};

// What the builder of block masks keeps: the number of intervals for each tile of queries and of
// keys, and whether they differ between batch entries or heads.
struct BlockMaskFacts {
    int query_facts = 0, key_facts = 0;
    bool by_batch = false, by_head = false;
    Layout queries = Layout::dense, keys = Layout::dense;
    bool is_dense() const { return queries == Layout::dense && keys == Layout::dense; }
};

// The tiles of the block mask that a kernel reads, and which requests have rows in it.
struct MaskTiling {
    int query_tile = 0, key_tile = 0;
    bool by_keys = false; // a row of the block mask is a tile of keys, not of queries
    RowsOf rows_of = RowsOf::all;
    friend bool operator==(const MaskTiling&, const MaskTiling&) = default;
};

struct KernelConfig {
    KernelKind kind = KernelKind::forward;
    std::string_view family;        // Family::name of the kernel's family; empty for none
    std::string_view template_path; // within templates/: "forward.cu"
    std::string_view entry;         // name of the extern "C" function
    int query_tile = 0;             // kQueryTile ... kSharedBytes of mod.cuh
    int key_tile = 0;
    int warps = 0; // 32 * warps threads in a block
    int stages = 1;
    int shared_bytes = 0; // dynamic
    std::any of_family;   // what only the kernels of its family have, a type of the family's folder
    // How a block divides its work; nothing if there is only one way: Family::schedules.
    std::optional<ForwardSchedule> schedule;
    Decomposition decomposition = Decomposition::none;
    int shifted_reads = 0;       // with Decomposition::with_shifts: so many
    bool copies_keys = false;    // threads copy keys and values, which then need no tensor maps
    bool has_mask_parts = false; // evaluates the mask part by part, as mod::MaskPart
    std::optional<BlockMaskFacts> block_mask; // set: builds block masks
    std::optional<MaskTiling> mask_tiling;    // set in a pass that reads one
    // The form of its template; each higher one needs fewer registers and is slower.
    int saves_registers = 0;
    bool has_block_mask = false;  // visits the tiles that a block mask names
    bool has_few_queries = false; // for requests with few queries: forward_few.cu
    bool is_short = false;        // for sequences that fit into one tile
    int blocks_at_once = 1;       // with is_short: resident blocks on a multiprocessor
    // With is_short: the passes::shared_value() that blocks keep between sequences.
    ir::NodeId shared_value = ir::kNoNode;
    bool owns_keys = false; // a block has a tile of keys and visits queries, not the other way
    // Width of the 2-D key index by which it stages or sums what is read; 0 for none.
    int key_width = 0;
    bool stages_columns = false; // stages reads by column of that 2-D key index
    bool stages_sums = false;    // sums by that index with MMAs, sums by column in shared memory
    int query_sums = 0;      // gradients by query for which the block's warps combine their sums
    int d_scores_stages = 2; // of a warp-specialized backward: tiles of dS in shared memory
    int bias_stages = 0;     // of a warp-specialized backward: copied tiles of the dense bias
    bool adds_bias_gradients = false; // adds tiles of GradientSum::dense_bias
    bool sums_shifts = false;         // adds GradientSum::shifted from the tile of dS
    // Words of shared memory for sums of GradientSum::table or of grids: for each warp that sums;
    // in a generic backward, for each table.
    int table_words = 0;
    int grid_places = 0; // digit places by which it sums parts of diagonals
    // Blocks report when they have added to dq; the first one may then store instead of adding.
    bool reports_additions = false, stores_dq_first = false;
    bool is_persistent = false; // launches at most one block per multiprocessor
    // One copy of the code for a tile's elements serves all kinds of tiles.
    bool writes_scores_once = false;

    // Spills that make a compiled kernel give way to a later candidate, in bytes. Beyond
    // tolerated_spills, the next candidate is tried.
    int tolerated_spills = 0;
    // The next saving_forms candidates are variants of this one that need fewer registers. Beyond
    // savable_spills, which is the most that they can save, all of them are skipped.
    int saving_forms = 0;
    int savable_spills = 0;
    // Beyond this, the first of these variants is skipped: it saves registers only in the warps
    // beside the MMAs.
    int beside_spills = 0;

    std::string reason; // one line, for people

    bool stages_tables() const {
        return decomposition == Decomposition::with_tables ||
               decomposition == Decomposition::with_aligned_tables;
    }
};

} // namespace flexc::plan
