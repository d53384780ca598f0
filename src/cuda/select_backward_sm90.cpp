// Tiles of Hopper's fused backward kernel, and the kernels before and after it.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "cuda/select.h"

namespace flexc::cuda {
namespace {

constexpr int kConsumers = 2;
constexpr int kSlabRows = 64;    // of dq's accumulator
constexpr int kPaddedRows = 128; // queries of a head are padded to a multiple
constexpr int kWidest = 128;     // that warpgroups with keys of their own have registers for

struct FusedTile {
    int query_tile = 0;
    bool stages_columns = false; // of the grid of keys
    bool stages_sums = false;    // of its columns, by products
    int d_scores_stages = 2;
    int bias_stages = 0;        // tiles of a matrix of biases in shared memory
    bool adds_matrices = false; // tiles of its gradient there
    int saves_registers = 0;    // in so many steps

    bool has_matrix() const { return bias_stages > 0 || adds_matrices; }
};

// Whether warpgroups share their keys: sm90/backward_layout.cuh says what that changes.
bool shares_keys(const KernelRequest& request) {
    return std::max(request.head_dim, request.head_dim_v) > kWidest;
}
int key_tile(const KernelRequest& request) { return shares_keys(request) ? 64 : 64 * kConsumers; }
// Shared keys leave no room for what is staged by a grid of them.
GridReads grid_of(const KernelRequest& request) {
    return shares_keys(request) ? GridReads{} : request.grid_reads;
}

// Of what is staged beside a tile of queries, in one stage.
int grid_bytes(const GridReads& reads, const FusedTile& tile) {
    constexpr int kKeyTile = 64 * kConsumers;
    if (reads.width == 0 || tile.has_matrix()) return 0;
    const int rows = kKeyTile / reads.width + (kKeyTile % reads.width == 0 ? 0 : 2);
    const int pitch = round_up_16(reads.width * reads.column_bytes) + 16;
    return tile.query_tile *
           (reads.by_row * rows * 4 + (tile.stages_columns ? reads.by_column * pitch : 0));
}

// Whether products can sum a tile over the grid: its keys are whole rows, of whole steps.
bool sums_by_products(const GridReads& reads) {
    constexpr int kStep = 16;
    return reads.width > 0 && 64 * kConsumers % reads.width == 0 && reads.width % kStep == 0 &&
           reads.sums_are_linear;
}

// Of pieces of dq: 64 columns from each warpgroup, or half of 64, but none past the last.
int piece_bytes(const KernelRequest& request, const FusedTile& tile) {
    constexpr int kRowBytes = kSlabRows * 4, kPanelColumns = 64;     // of a column
    if (tile.adds_matrices && request.matrices_are_narrow) return 0; // added from the tile of dS
    if (tile.adds_matrices) return kConsumers * kSlabRows * (kPanelColumns * 4 + 16);
    if (tile.query_tile == 2 * kSlabRows) return kRowBytes * (kPanelColumns + request.head_dim);
    const int columns = request.head_dim > kPanelColumns ? kPanelColumns : kPanelColumns / 2;
    return kRowBytes * (columns + std::clamp(request.head_dim - columns, 0, columns));
}

// The layout at the top of sm90/backward_layout.cuh.
int shared_bytes(const KernelRequest& request, const FusedTile& tile) {
    constexpr int kRowBytes = 128; // of a panel
    constexpr int kRingStages = 2;
    constexpr int kPadding = 16; // of a row of a matrix
    constexpr int kBarrierBytes = 8, kBarriers = 14;
    const bool shares = shares_keys(request);
    const int rows = tile.query_tile, keys = key_tile(request);
    // Of a query: lse, delta, and what a program computes.
    const int fact_bytes = 4 + 4 + (shares ? 8 : 16);
    const int score_tiles = shares ? 2 : 1; // with that of weights
    const int both = panels(request.head_dim) + panels(request.head_dim_v);
    const int operands = kRowBytes * (both * (keys + kRingStages * rows) +
                                      tile.d_scores_stages * score_tiles * panels(keys) * rows);
    const int pieces = shares ? 0 : piece_bytes(request, tile);
    const GridReads grid = grid_of(request);
    const int sums = tile.stages_sums && grid.sums_columns ? rows * grid.width * 4 : 0;
    const int biases = tile.bias_stages * rows * (keys * request.bias_bytes + kPadding);
    const int barriers =
        kBarrierBytes * (kBarriers + 2 * tile.bias_stages + (tile.d_scores_stages == 1 ? 1 : 0));
    const int mapped_tiles = request.has_map ? 16 : 0;
    return round_up_16(operands + pieces + sums + biases + kRingStages * rows * fact_bytes +
                       barriers + mapped_tiles + kRingStages * grid_bytes(grid, tile));
}

// Sums of queries that the block's warps put together: all, where there is room for them.
void gather_query_sums(const KernelRequest& request, KernelConfig& config) {
    constexpr int kSlots = 4, kWarps = 4 * kConsumers;
    constexpr int kBarrierBytes = 16; // with what follows on a multiple of 16
    constexpr int kOthers = 256;      // what blocks that stay have beside shared_bytes()
    if (request.query_sums == 0) return;
    const int bytes = request.query_sums * kSlots * kWarps * config.query_tile * 4 + kBarrierBytes;
    const int left = shared_memory_limit(request.arch) - config.shared_bytes - kOthers;
    if (shares_keys(request) || bytes > left) return;
    config.query_sums = request.query_sums;
    config.shared_bytes += bytes;
}

// Where blocks are short enough to gain by it, warpgroups take turns at dq
// (sm90/backward_layout.cuh), and no warp beside the products knows one tile of keys alone.
bool blocks_stay(const KernelRequest& request, const FusedTile& tile) {
    return (request.has_map || request.has_window) && !shares_keys(request) &&
           !tile.adds_matrices && tile.d_scores_stages == 2 && !request.sums_distances &&
           request.grid_reads.width == 0;
}

bool suits(const KernelRequest& request, const FusedTile& tile) {
    if (shares_keys(request)) return tile.query_tile == kSlabRows;
    // Two tiles of scores, dk and dv; the rest of 240 registers is for fragments and the mod.
    constexpr int kMostAccumulators = 192;
    const int accumulators =
        tile.query_tile +
        (padded_columns(request.head_dim) + padded_columns(request.head_dim_v)) / 2;
    // A warpgroup's piece of dq is 64 columns, or 64 of 128 rows. Where so many elements are added
    // one by one, registers always spill, and a compile takes up to a minute.
    // Beside a derivative of each score, weights would have room in 16 bits only.
    // Sums over distances would need registers that the warps beside the products do not have.
    if (tile.query_tile == 2 * kSlabRows &&
        (request.head_dim > 64 || request.adds_elements || request.derivative_uses_score ||
         request.sums_distances))
        return false;
    return accumulators <= kMostAccumulators &&
           shared_bytes(request, tile) <= shared_memory_limit(request.arch);
}

// For matrices; without one where none fits.
std::optional<FusedTile> matrix_tile(const KernelRequest& request) {
    if (shares_keys(request) || (request.bias_bytes == 0 && !request.adds_matrices)) return {};
    for (FusedTile tile : {FusedTile{2 * kSlabRows, false, false, 2, 1},
                           {2 * kSlabRows, false, false, 1, 1},
                           {kSlabRows, false, false, 2, 2},
                           {kSlabRows, false, false, 2, 1},
                           {kSlabRows, false, false, 1, 1},
                           {kSlabRows, false, false, 2, 0}}) {
        tile.adds_matrices = request.adds_matrices;
        if (tile.bias_stages > 0 && request.bias_bytes == 0) continue;
        // The second half of the queries waits in registers, as dS alone does.
        if (tile.query_tile > kSlabRows && !request.matrices_are_of_scores) continue;
        // Warps that add from the tile of dS leave it one tile later than others do.
        const bool reads_tile = tile.adds_matrices && request.matrices_are_narrow;
        if (reads_tile && tile.d_scores_stages == 1) continue;
        if (tile.has_matrix() && suits(request, tile)) return tile;
    }
    return {};
}

// How many forms of a tile save registers. None where keys are shared; and sums over a grid of keys
// spill as much in them. What only masks has one less.
int saving_forms(const KernelRequest& request) {
    if (shares_keys(request) || grid_of(request).width != 0) return 0;
    return request.has_score_mod ? 3 : 2;
}

// Best first. What is read by column of a grid costs more from memory than smaller tiles do, and so
// do sums without products. After each tile come its forms that save registers, each slower than
// the one before it.
std::vector<FusedTile> fused_tiles(const KernelRequest& request) {
    std::vector<FusedTile> tiles;
    const auto add = [&](FusedTile tile) {
        for (int step = 0; step <= saving_forms(request); ++step) {
            tile.saves_registers = step;
            tiles.push_back(tile);
        }
    };
    if (const auto tile = matrix_tile(request)) add(*tile);
    const GridReads grid = grid_of(request);
    for (const bool stages_columns : {true, false}) {
        if (stages_columns && grid.by_column == 0) continue;
        for (const bool stages_sums : {true, false}) {
            if (stages_sums && !sums_by_products(grid)) continue;
            for (const int query_tile : {2 * kSlabRows, kSlabRows})
                if (const FusedTile tile{query_tile, stages_columns, stages_sums};
                    suits(request, tile))
                    add(tile);
        }
    }
    return tiles;
}

std::optional<KernelConfig> fused(const KernelRequest& request) {
    const std::vector<FusedTile> all = fused_tiles(request);
    const auto refused = static_cast<std::size_t>(request.refused);
    if (refused >= all.size()) return {};
    const FusedTile& tile = all[refused];
    KernelConfig config;
    const bool shares = shares_keys(request);
    config.template_path = shares ? "backward_wide_sm90.cu" : "backward_sm90.cu";
    config.entry = shares ? "flexc_backward_wide_sm90" : "flexc_backward_sm90";
    config.query_tile = tile.query_tile;
    config.key_tile = key_tile(request);
    config.warps = 4 * (kConsumers + 1);
    config.stages = 2;
    config.d_scores_stages = tile.d_scores_stages;
    config.bias_stages = tile.bias_stages;
    config.adds_matrices = tile.adds_matrices;
    config.saves_registers = tile.saves_registers;
    config.reports_additions = !shares && !tile.adds_matrices;
    config.stores_dq_first = config.reports_additions && !request.deterministic;
    config.shared_bytes = shared_bytes(request, tile);
    gather_query_sums(request, config);
    config.key_width = tile.has_matrix() ? 0 : grid_of(request).width;
    config.blocks_stay = blocks_stay(request, tile);
    if (config.blocks_stay) config.shared_bytes = shared_memory_limit(request.arch);
    config.stages_columns = tile.stages_columns;
    config.stages_sums = tile.stages_sums;
    const bool is_last = refused + 1 == all.size();
    // The generic kernel comes last, but for one whose additions to dq need an order.
    config.has_next = !is_last || !request.deterministic;
    // What spills little is as fast in a form that saves registers; what spills much, with smaller
    // tiles.
    constexpr int kSavable = 128;
    config.saving_forms = saving_forms(request) - tile.saves_registers;
    const bool comes_again = config.saving_forms > 0;
    const bool has_smaller = request.refused + config.saving_forms + 1 < std::ssize(all);
    config.savable_spills =
        has_smaller && !tile.has_matrix() ? kSavable : std::numeric_limits<int>::max();
    // A few words cost some percent, and the generic kernel has half the speed, but for where
    // memory adds up elements.
    const bool adds_elements = request.adds_elements && config.key_width == 0;
    config.tolerated_spills = comes_again || adds_elements                            ? 0
                              : is_last || tile.has_matrix() || config.key_width != 0 ? 256
                                                                                      : 128;
    config.reason = "wgmma, dk and dv of a tile of keys, dq by ";
    config.reason +=
        shares || tile.adds_matrices ? "additions from registers" : "the copy engine's additions";
    if (tile.adds_matrices) config.reason += ", tiles of a matrix's gradient";
    if (request.deterministic) config.reason += ", in the order of keys";
    if (config.key_width != 0)
        config.reason += ", keys as a grid of " + std::to_string(config.key_width) + " columns";
    if (tile.bias_stages > 0) config.reason += "; biases through shared memory";
    if (refused > static_cast<std::size_t>(tile.saves_registers))
        config.reason += "; larger tiles spilled registers or serialised products";
    if (tile.saves_registers > 0)
        config.reason += "; saves registers in " + std::to_string(tile.saves_registers) + " steps";
    return config;
}

KernelConfig delta() {
    KernelConfig config;
    config.template_path = "backward_delta_sm90.cu";
    config.entry = "flexc_backward_delta_sm90";
    config.query_tile = kPaddedRows;
    config.warps = 4;
    config.reason = "row sums of d_out * o, and zeros for dq";
    return config;
}

KernelConfig convert(const KernelRequest& request) {
    KernelConfig config;
    config.template_path = "backward_convert_sm90.cu";
    config.entry = "flexc_backward_convert_sm90";
    config.query_tile = kSlabRows;
    config.warps = 4;
    constexpr int kBarrierBytes = 16; // with what one thread tells the others
    config.shared_bytes = kSlabRows * request.head_dim * 4 + kBarrierBytes;
    config.reason = "dq from its accumulator";
    return config;
}

// Kernels with a thread for each distance.
KernelConfig by_distance(bool folds) {
    KernelConfig config;
    config.template_path = folds ? "backward_fold_sm90.cu" : "backward_expand_sm90.cu";
    config.entry = folds ? "flexc_backward_fold_sm90" : "flexc_backward_expand_sm90";
    config.key_tile = kPaddedRows;
    config.warps = 4;
    config.reason = folds ? "gradients of reads that use q_idx - kv_idx, from sums over diagonals"
                          : "reads that use q_idx - kv_idx, one for each distance";
    return config;
}

} // namespace

std::string_view why_not_backward_sm90(const KernelRequest& request) {
    if (request.arch != 90) return "only Hopper has wgmma";
    if (!request.generic_because.empty()) return request.generic_because;
    if (request.dtype == DType::f32) return "wgmma has no products of floats";
    if (request.head_dim % 8 != 0 || request.head_dim_v % 8 != 0)
        return "the copy engine needs rows of a multiple of 16 bytes";
    if (shares_keys(request) && request.deterministic)
        return "additions of dq from registers, which wide heads need, have no order";
    return "";
}

int backward_sm90_choices(const KernelRequest& request) {
    if (request.kind != KernelKind::backward_fused || !why_not_backward_sm90(request).empty())
        return 0;
    return static_cast<int>(fused_tiles(request).size());
}

std::optional<KernelConfig> select_backward_sm90(const KernelRequest& request) {
    if (!why_not_backward_sm90(request).empty()) return {};
    std::optional<KernelConfig> config;
    switch (request.kind) {
    case KernelKind::delta: config = delta(); break;
    case KernelKind::backward_fused: config = fused(request); break;
    case KernelKind::convert: config = convert(request); break;
    case KernelKind::expand: config = by_distance(false); break;
    case KernelKind::fold: config = by_distance(true); break;
    case KernelKind::forward:
    case KernelKind::backward_dq:
    case KernelKind::backward_dkdv:
    case KernelKind::plan:
    case KernelKind::round_sums:
    case KernelKind::round_gradients: break;
    }
    if (!config) return {};
    config->kind = request.kind;
    config->is_hopper_backward = true;
    return config;
}

} // namespace flexc::cuda
