// One kernel of a plan: what is fixed in it before it is compiled.
#pragma once

#include <any>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/block_mask.h"
#include "flexc/types.h"
#include "plan/kernel_request.h"
#include "plan/schedule.h"

namespace flexc::plan {

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
    int kind_words = 0; // beside table_words, for products that sum one of several tables
    bool adds_biases_beside = false; // by GradientSum::bias_beside
    int grid_places = 0;             // digit places by which it sums parts of diagonals
    bool weighs_distances = false;   // sums diagonals of a tile of elements' gradients, not of dS
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
