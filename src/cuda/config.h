// What the compiler fixes in a kernel before it is built: printed into mod.cuh as constants.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cuda/schedule.h"
#include "flexc/types.h"

namespace flexc::cuda {

enum class KernelKind : std::uint8_t {
    forward,
    delta,
    backward_dq,
    backward_dkdv,
    backward_fused,
    convert,
    expand,
    fold,
    plan,
    round_sums,
    round_gradients
};

// Keys as a grid: which parts of a score mod use kv // width, and kv % width, alone.
struct KeyGrid {
    int width = 0; // 0: none
    bool quotients = false, remainders = false;
    // Beside columns, rows are all that is added to products, and nothing multiplies these.
    bool adds_to_products = false;
};

// What Hopper's backward reads, and adds to, by a row or a column of keys as a grid.
struct GridReads {
    int width = 0;                 // of the grid; 0: none
    int by_row = 0, by_column = 0; // reads
    bool sums_columns = false;     // gradients of such
    bool sums_are_linear = false;  // in memory, from query to query
    int column_bytes = 0;          // of the largest element that is read by column
};

// Vectors that Hopper's forward has computed before it: numbers for each key, or each distance; of
// all batch entries and heads, unless they use these.
struct ExpandedValues {
    int keys = 0, distances = 0;
    bool by_batch = false, by_head = false;
    bool any() const { return keys + distances != 0; }
};

// Everything that a choice depends on.
struct KernelRequest {
    KernelKind kind = KernelKind::forward;
    int arch = 80; // compute capability times ten: 80, 86, 90, 100, 120
    DType dtype = DType::bf16;
    int head_dim = 64;
    int head_dim_v = 64;
    bool has_score_mod = false;
    bool has_mask = false;
    bool reports_out_of_range = false;
    // Of an element of the matrix of biases that is copied to shared memory: ScoreParts::bias_read,
    // and in the fused backward passes::matrix_of_score.
    int bias_bytes = 0;
    bool adds_matrices = false;          // some gradient is summed by passes::GradientSum::matrix
    bool matrices_are_of_scores = false; // and these are all that of the score
    bool matrices_are_narrow = false;    // and these have 16 bits, like the score's
    bool adds_elements = false;          // some gradient is summed by passes::GradientSum::element
    bool sums_distances = false;         // some gradient is by passes::GradientSum::distance
    int query_sums = 0;                  // gradients that are by passes::GradientSum::query
    bool derivative_uses_score = false;  // that of the score
    KeyGrid key_grid;                    // that tiles of keys should fit
    ExpandedValues expanded, grid_expanded; // without such a grid, and with it
    GridReads grid_reads;                   // in the fused backward
    bool has_map = false;                   // a map says which tiles are visited
    bool has_window = false;                // a band with both ends does
    std::string_view generic_because; // why only kernels for tensors of any layout will do, if so
    bool deterministic = false;
    int refused = 0; // configurations that compiled badly: the choice goes on after them
    std::optional<ForwardSchedule> schedule = {}; // asked for, instead of the choice
};

// What only forward_sm90.cu has.
struct HopperForward {
    ForwardSchedule schedule;
    bool has_registers_for_columns = false; // for a value of each of a thread's columns
    // What is added for rows of keys as a grid comes with the products, divided by softmax_scale.
    bool multiplies_grid_rows = false;
    ExpandedValues expanded;
};

// What plan.cu keeps: intervals of each tile of queries and of keys, and of which heads apart.
struct PlannerShape {
    int query_facts = 0, key_facts = 0;
    bool by_batch = false, by_head = false;
};

struct KernelConfig {
    KernelKind kind = KernelKind::forward;
    std::string_view template_path; // within templates/: "forward.cu"
    std::string_view entry;         // name of the extern "C" function
    int query_tile = 0;             // kQueryTile ... kSharedBytes of mod.cuh
    int key_tile = 0;
    int warps = 0; // 32 * warps threads in a block
    int stages = 1;
    int shared_bytes = 0;                // dynamic
    std::optional<HopperForward> hopper; // set: forward_sm90.cu
    std::optional<PlannerShape> planner; // set: plan.cu
    bool is_hopper_backward = false;     // backward_sm90.cu, or what goes before or after it
    int saves_registers = 0;             // in so many steps, each at the cost of some speed
    bool has_map = false;                // visits the tiles that a map names
    int key_width = 0; // of the grid of keys by which it stages or sums what is read; 0 for none
    bool stages_columns = false; // Hopper's backward: what is read by column of that grid
    bool stages_sums = false;    // and what is summed by column
    int query_sums = 0;          // gradients by query that the block's warps put together
    int d_scores_stages = 2;     // Hopper's backward; this and the next
    int bias_stages = 0;         // of the matrix that it copies; 0 for none
    bool adds_matrices = false;  // adds tiles of passes::GradientSum::matrix
    // Hopper's backward: blocks say when they have added to dq; the first stores its part.
    bool reports_additions = false, stores_dq_first = false;
    bool blocks_stay = false; // Hopper's backward: no more blocks than multiprocessors
    int tolerated_spills = 0; // bytes; more, and the next configuration is tried
    bool has_next = false;    // another configuration, which needs fewer registers, can follow
    int saving_forms = 0;     // of the next ones, so many are this one but save registers:
    int savable_spills = 0;   // if it spills more bytes, they are passed over
    std::string reason;       // one line, for people
};

} // namespace flexc::cuda
