// One kernel of a plan: what is fixed in it before it is compiled.
#pragma once

#include <any>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/block_mask.h"
#include "flexc/types.h"
#include "passes/gradient_sum.h"
#include "plan/kernel_request.h"
#include "plan/schedule.h"

namespace flexc::plan {

// A block of threads: arguments of every template, which reads them as constants of mod.cuh,
// kQueryTile to kPersistent.
struct BlockShape {
    int query_tile = 0, key_tile = 0;
    int warps = 0;
    int stages = 1;             // of tiles that are loaded ahead
    int shared_bytes = 0;       // dynamic
    int blocks_at_once = 1;     // resident blocks on a multiprocessor
    bool is_persistent = false; // one for each multiprocessor at most, which loops over tiles
    int threads() const { return 32 * warps; }
};

// The form of a template's code, which computes the same in all: kSavesRegisters of mod.cuh,
// ScoreDerivative::kIsWrittenOnce and ForwardSchedule::kVisitsFirstInLoop.
struct CodeForm {
    int saves_registers = 0; // each higher one needs fewer registers and is slower
    // One copy of the code for a tile's elements serves all kinds of tiles.
    bool writes_scores_once = false;
    // That code is so long that tiles that hide nothing have no copy of their own either.
    bool has_long_scores = false;
};

// Which of a program's decompositions of its score mod a kernel takes, see
// TargetProgram::decomposed().
struct Decomposition {
    enum class Of : std::uint8_t {
        none, // the kernel evaluates the mod whole
        plain,
        by_index_2d,
        by_kinds,
        with_tables,
        with_aligned_tables,
        with_shifts
    };
    Of of = Of::none;
    int key_width = 0;     // by_index_2d: width of that index
    int shifted_reads = 0; // with_shifts: so many of them are copied by tiles

    bool stages_tables() const { return of == Of::with_tables || of == Of::with_aligned_tables; }
};

// The sequences that a kernel is made for; by default any.
struct SequenceSizes {
    bool has_few_queries = false; // requests with few queries: forward_few.cu
    bool is_short = false;        // they fit into one tile, and a block computes one after another
    // With is_short: the passes::shared_value() that blocks keep between sequences.
    ir::NodeId shared_value = ir::kNoNode;
};

// Of a kernel that sums nothing from whole tiles.
inline constexpr passes::TileSums kNoTileSums = {.adds_bias_gradients = false};

// What a backward has in shared memory beside the tiles that every program needs; constants of
// policies in mod.cuh.
struct BackwardStorage {
    int d_scores_stages = 2; // tiles of dS, where warps are specialized
    int bias_stages = 0;     // copied tiles of the dense bias
    int query_sums = 0;      // gradients by query for which the block's warps combine their sums
    bool stages_rows = true; // what the program computes for each query of a tile
    bool stages_columns = false; // what is read by column of the 2-D key index TileSums::key_width
    bool stages_sums = false;    // sums by column of that index; MMAs sum a tile by it
    // Words for sums of tables or grids: for each warp that sums; in a generic backward, for each
    // table.
    int table_words = 0;
    // Instead of these words: the entries of all tables, of each of which a block has
    // 2^entry_copy_shift copies that its elements are added to.
    int entries = 0, entry_copy_shift = 0;
    // A call's sizes decide how many entries and copies there are: `entries` is then the most.
    bool entries_are_bound = false;
    int kind_words = 0; // beside table_words, for products that sum one of several tables
    int term_words = 0; // for gradients of the terms of sums, for each warp that computes elements
    int term_keys = 0;  // keys of such a warp, each of which has words of its own
};

// When a compiled kernel gives way to a later candidate, in bytes that it spills.
struct SpillLimits {
    int tolerated = 0; // beyond this, the next candidate is tried
    // The next saving_forms candidates are variants of this one that need fewer registers. Beyond
    // `savable`, which is the most that they can save, all of them are skipped.
    int saving_forms = 0;
    int savable = 0;
    // Beyond this, the first of these variants is skipped: it saves registers only in the warps
    // beside the MMAs.
    int beside = 0;
    // Whether kernels of the same family and tile serialise products, too, where this one does: all
    // of them are skipped then.
    bool serialise_alike = false;
};

// What the builder of block masks keeps: the number of intervals for each tile of queries and of
// keys, and whether they differ between batch entries or heads.
struct BlockMaskFacts {
    int query_facts = 0, key_facts = 0;
    bool by_batch = false, by_head = false;
    Layout queries = Layout::dense, keys = Layout::dense;
    bool is_dense() const { return queries == Layout::dense && keys == Layout::dense; }
};

// The tiles of the block mask that a launch reads, and which requests have rows in it.
struct MaskTiling {
    int query_tile = 0, key_tile = 0;
    bool by_keys = false; // a row of the block mask is a tile of keys, not of queries
    RowsOf rows_of = RowsOf::all;
    friend bool operator==(const MaskTiling&, const MaskTiling&) = default;
};

struct KernelConfig {
    KernelKind kind = KernelKind::forward;
    std::string_view family = {};        // Family::name of the kernel's family; empty for none
    std::string_view template_path = {}; // within templates/: "forward.cu"
    std::string_view entry = {};         // name of the extern "C" function
    BlockShape block;
    CodeForm form;
    SequenceSizes sequences;
    bool has_block_mask = false; // visits the tiles that a block mask names
    // So many of a thread's elements are computed at once where they add up sums in loops over
    // terms; 0: each by itself.
    int sum_elements = 0;
    // Of a forward.
    Decomposition decomposition;
    // How a block divides its work; nothing if there is only one way: Family::schedules.
    std::optional<ForwardSchedule> schedule = {};
    // Of a backward.
    bool gradients_are_alone = false;    // BufferGradients::are_alone
    passes::TileSums sums = kNoTileSums; // gradients of buffers that it sums from whole tiles
    BackwardStorage storage;

    SpillLimits spills;
    std::string reason = {}; // one line, for people
    std::any of_family = {}; // what only the kernels of its family have, a type of its folder
};

} // namespace flexc::plan
