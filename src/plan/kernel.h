// One kernel of a plan: what is asked of it, and what is fixed in it before it is compiled.
#pragma once

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
#include "sm90/forward_layout.h"

namespace flexc::plan {

enum class KernelKind : std::uint8_t {
    forward,
    delta,
    backward_dq,
    backward_dkdv,
    backward_fused,
    convert,
    expand,
    fold,
    block_mask,
    lengths,
    round_sums,
    round_gradients
};

// A tile of a shifted read: whether its lines are keys, and bytes of an element.
struct ShiftedTile {
    bool by_key = false;
    int element_bytes = 0;
};

// What a forward knows that copies these tiles.
struct ShiftedTiles {
    std::vector<ShiftedTile> tiles;
    bool have_ends = false; // passes::have_ends()
    passes::TabulatedValues tabulated;
};

// Everything that the choice of a configuration depends on.
// Of keys, of which so many are before the next tile's.
struct AlignedTile {
    int keys = 0, step = 0;
};

struct KernelRequest {
    KernelKind kind = KernelKind::forward;
    int arch = 80; // compute capability times ten: 80, 86, 90, 100, 120
    DType dtype = DType::bf16;
    int head_dim = 64;
    int head_dim_v = 64;
    std::optional<DType> kv_dtype = {}; // of keys and values, where it is another
    bool has_entry_scales = false;      // for each entry of these
    bool has_score_mod = false;
    bool reports_out_of_range = false;
    // Of an element of the dense bias that is copied to shared memory: ScoreParts::bias_read, and
    // in the fused backward passes::dense_bias_of_score.
    int bias_bytes = 0;
    bool adds_bias_gradients = false;   // some gradient is summed by GradientSum::dense_bias
    bool biases_are_of_scores = false;  // and these are all that of the score
    bool biases_are_narrow = false;     // and these have 16 bits, like the score's
    bool adds_elements = false;         // some gradient is summed by GradientSum::element
    bool sums_distances = false;        // some gradient is by GradientSum::distance
    bool sums_tables = false;           // some gradient is by GradientSum::table
    bool sums_shifts = false;           // some gradient is by GradientSum::shifted
    bool adds_many_entries = false;     // some varies within a head, beside few_entries
    int few_entries = 0;                // gradients of passes::count_few_entries
    int grid_places = 0;                // places of Mod::digit_places, where kernels may sum grids
    int query_sums = 0;                 // gradients that are by GradientSum::query
    bool has_gradients = false;         // some buffer has one
    bool gradients_vary = false;        // and some do so within a head
    bool derivative_uses_score = false; // that of the score
    bool folds_derivative = false;      // and no buffer has a gradient: it is multiplied into P
    bool partials_use_score = false;    // those of some read
    bool computes_rows = false;         // in the fused backward: some value of a query
    bool computes_columns = false;      // and some of a key
    passes::KeyIndex2d key_index_2d;    // that tiles of keys should fit
    // Without such a 2-D key index, with it, where tables are kept on chip, and with kinds of keys.
    passes::TabulatedValues tabulated, tabulated_by_index_2d, tabulated_with_tables,
        tabulated_with_aligned_tables, tabulated_with_kinds;
    bool adds_by_position = false; // passes::adds_by_position(), of the first of these
    bool adds_kinds_alone = false; // nothing is added but by key_kinds
    int key_kinds = 0;             // by which it may multiply; 0 for none
    // That the forward may copy: all, and ever fewer, down to one.
    std::vector<ShiftedTiles> shifts;
    // Of each table that the forward may keep on chip; 0: known when tensors are.
    std::vector<std::int64_t> table_entries;
    std::vector<AlignedTile> aligned_tiles; // in which passes::aligned_tables() has all
    bool adds_tables_alone = false;         // then, and scores are not multiplied
    bool starts_with_tables = false;        // products may be added to what others have
    int bias_bytes_with_tables = 0;         // of the dense bias, or of indices of these
    bool copies_table_indices = false;      // of indices
    bool computes_table_indices = false;    // for each element, beside sums of two numbers
    passes::Index2dReads index_2d_reads;    // in the fused backward
    bool has_block_mask = false;            // a block mask says which tiles are visited
    bool has_window = false;                // a band with both ends does
    bool is_ragged = false;                 // queries and keys lie behind those of other requests
    std::string_view scattered_in = {};     // keys of ragged queries, which are not in order
    bool has_own_instructions = true;       // of one architecture alone: Target
    std::string_view generic_because; // why only kernels for tensors of any layout will do, if so
    int element_instructions = 0;     // plan::element_instructions
    int read_instructions = 0;        // plan::read_instructions, without the mask
    ScoreWork score_work;             // plan::score_work
    bool is_long = false;             // and these are more than kernels write out
    int copied_instructions = 0;      // in the fused backward: plan::copied_instructions
    bool is_large = false;            // and plan::is_large
    bool deterministic = false;
    int most_rows = 0; // queries, and keys, that no sequence of a call has more of; 0: any number
    ir::NodeId shared_value = ir::kNoNode;        // passes::shared_value()
    bool sums_batches = false;                    // some gradient is by GradientSum::batch
    std::optional<ForwardSchedule> schedule = {}; // asked for, instead of the choice

    bool computes_much() const { return element_instructions > kFewInstructions; }
    bool reads_much() const { return read_instructions > kFewInstructions; }
};

// What a warp-specialized forward has beside the rest.
struct WarpSpecializedForward {
    ForwardSchedule schedule;
    bool has_registers_for_columns = false; // for a value of each of a thread's columns
    ::sm90::ForwardSizes sizes;             // of its tiles and of what it reads
    passes::TabulatedValues tabulated;
    // Of each table that is kept on chip: those of a slice that is larger are read from memory.
    std::vector<int> table_words;
    bool aligns_tables = false;
    bool starts_with_tables = false; // products may be added to what these have
    int key_step = 0; // from a tile's first key to the next one's: its last may be in both
    bool starts_at_highest = false; // keys come first where most is added to scores
    bool computes_in_parts = false; // what is added to elements: a few of a thread's at a time
    int shifted_reads = 0;          // whose tiles are copied
    bool stages_tables() const { return !table_words.empty(); }
};

// What the builder of block masks keeps: intervals of each tile of queries and of keys, and of
// which heads apart.
struct BlockMaskFacts {
    int query_facts = 0, key_facts = 0;
    bool by_batch = false, by_head = false;
    Layout queries = Layout::dense, keys = Layout::dense;
    bool is_dense() const { return queries == Layout::dense && keys == Layout::dense; }
};

// Tiles of the block mask that a kernel reads, and of which requests its rows are.
struct MaskTiling {
    int query_tile = 0, key_tile = 0;
    bool by_keys = false; // rows are tiles of keys
    RowsOf rows_of = RowsOf::all;
    friend bool operator==(const MaskTiling&, const MaskTiling&) = default;
};

struct KernelConfig {
    KernelKind kind = KernelKind::forward;
    std::string_view family;        // Family::name of whose kernel it is; empty: of none
    std::string_view template_path; // within templates/: "forward.cu"
    std::string_view entry;         // name of the extern "C" function
    int query_tile = 0;             // kQueryTile ... kSharedBytes of mod.cuh
    int key_tile = 0;
    int warps = 0; // 32 * warps threads in a block
    int stages = 1;
    int shared_bytes = 0; // dynamic
    std::optional<WarpSpecializedForward> specialized;
    std::optional<BlockMaskFacts> block_mask; // set: builds block masks
    std::optional<MaskTiling> mask_tiling;    // set in a pass that reads one
    // A kernel of a warp-specialized backward, or one that goes before or after it.
    bool is_warp_specialized = false;
    int saves_registers = 0;      // in which form of its template, each at the cost of some speed
    bool has_block_mask = false;  // visits the tiles that a block mask names
    bool has_few_queries = false; // of requests: forward_few.cu
    bool is_short = false;        // of sequences that are a tile at most
    int blocks_at_once = 1;       // of those, on a multiprocessor
    ir::NodeId shared_value = ir::kNoNode; // passes::shared_value(), which they keep
    bool owns_keys = false; // a block has a tile of keys and visits queries, not the other way
    int key_width = 0; // of the 2-D key index by which it stages or sums what is read; 0 for none
    bool stages_columns = false;      // what is read by column of that 2-D key index
    bool stages_sums = false;         // and what is summed by column
    int query_sums = 0;               // gradients by query that the block's warps put together
    int d_scores_stages = 2;          // of a warp-specialized backward; this and the next
    int bias_stages = 0;              // of the dense bias that it copies; 0 for none
    bool adds_bias_gradients = false; // adds tiles of GradientSum::dense_bias
    bool sums_shifts = false;         // adds GradientSum::shifted from the tile of dS
    // For sums of GradientSum::table, or of grids, of a warp; in a generic backward of each table.
    int table_words = 0;
    int grid_places = 0; // places by which it sums diagonals in parts
    // Blocks say when they have added to dq; the first stores its part.
    bool reports_additions = false, stores_dq_first = false;
    bool is_persistent = false; // no more blocks than multiprocessors
    // One copy of what is computed for a tile's elements serves all kinds of tiles.
    bool writes_scores_once = false;

    // Which spills make a compiled kernel give way to the next candidate.
    int tolerated_spills = 0; // bytes; more, and the next is tried
    // Of the next candidates, so many are this one but save registers: if it spills more bytes than
    // these can save, they are passed over.
    int saving_forms = 0;
    int savable_spills = 0;
    // If it spills more than this, the first of them is, which helps beside products alone.
    int beside_spills = 0;

    std::string reason; // one line, for people
};

} // namespace flexc::plan
