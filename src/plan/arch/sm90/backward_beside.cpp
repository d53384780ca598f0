// Configures the kernels that run before and after Hopper's fused backward.
#include "plan/arch/sm90/sm90.h"

namespace flexc::plan::sm90 {
namespace {

constexpr int kWarpsBeside = 4;

} // namespace

KernelConfig delta_kernel() {
    return {.kind = KernelKind::delta,
            .family = kName,
            .template_path = "backward_delta_sm90.cu",
            .entry = "flexc_backward_delta_sm90",
            .block = {.query_tile = kPaddedRows, .warps = kWarpsBeside},
            .reason = "row sums of d_out * o, and zeros for dq"};
}

KernelConfig convert_kernel(int head_dim) {
    constexpr int kBarrierBytes = 16; // and a value that one thread passes to the others
    return {.kind = KernelKind::convert,
            .family = kName,
            .template_path = "backward_convert_sm90.cu",
            .entry = "flexc_backward_convert_sm90",
            .block = {.query_tile = kRowBlock,
                      .warps = kWarpsBeside,
                      .shared_bytes = kRowBlock * head_dim * 4 + kBarrierBytes},
            .reason = "dq from its accumulator"};
}

// Tiles of these two are distances, one for each thread.
KernelConfig tabulate_kernel() {
    return {.kind = KernelKind::tabulate,
            .family = kName,
            .template_path = "backward_tabulate_sm90.cu",
            .entry = "flexc_backward_tabulate_sm90",
            .block = {.key_tile = kPaddedRows, .warps = kWarpsBeside},
            .reason = "values that use q_idx - kv_idx, one for each distance"};
}

KernelConfig fold_kernel(const passes::TileSums& of_main) {
    KernelConfig config = {
        .kind = KernelKind::fold,
        .family = kName,
        .template_path = "backward_fold_sm90.cu",
        .entry = "flexc_backward_fold_sm90",
        .block = {.key_tile = kPaddedRows, .warps = kWarpsBeside},
        .reason = "gradients through values that use q_idx - kv_idx, from sums over diagonals"};
    config.sums.sums_grids = of_main.sums_grids;
    config.sums.weighs_distances = of_main.weighs_distances;
    return config;
}

} // namespace flexc::plan::sm90
