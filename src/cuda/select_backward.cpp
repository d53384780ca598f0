// Tiles of the backward kernels.
#include <algorithm>
#include <array>

#include "cuda/select.h"

namespace flexc::cuda {
namespace {

struct BackwardShape {
    int query_tile, key_tile, warps, stages;
};

// Best first. The last ones fit the largest rows into the smallest shared memory.
constexpr std::array kKeyShapes = {
    BackwardShape{128, 128, 8, 2}, BackwardShape{64, 128, 8, 2}, BackwardShape{64, 128, 8, 1},
    BackwardShape{64, 64, 8, 2},   BackwardShape{64, 64, 8, 1},  BackwardShape{64, 64, 4, 1},
    BackwardShape{32, 64, 8, 1},   BackwardShape{32, 32, 4, 1},  BackwardShape{16, 16, 2, 1},
};
constexpr std::array kQueryShapes = {
    BackwardShape{128, 64, 8, 2}, BackwardShape{128, 32, 8, 2}, BackwardShape{64, 64, 4, 2},
    BackwardShape{64, 32, 4, 2},  BackwardShape{64, 32, 4, 1},  BackwardShape{32, 32, 2, 1},
    BackwardShape{32, 16, 2, 1},  BackwardShape{16, 16, 1, 1},
};

constexpr int kRowSumBytes = 2 * sizeof(float); // lse and delta of a query

// What both head dims of a row take.
int row_pair_bytes(const KernelRequest& request) {
    return tile_row_bytes(request.head_dim, request.dtype) +
           tile_row_bytes(request.head_dim_v, request.dtype);
}

// The layouts at the top of backward_key.cu and backward_query.cu. Results leave through the same
// memory as floats.
int key_kernel_bytes(const KernelRequest& request, const BackwardShape& shape) {
    const int rows = row_pair_bytes(request);
    const int used = shape.key_tile * rows +
                     2 * shape.query_tile * tile_row_bytes(shape.key_tile, request.dtype) +
                     shape.stages * shape.query_tile * (rows + kRowSumBytes);
    const int widest = std::max(request.head_dim, request.head_dim_v);
    return std::max(used, shape.key_tile * tile_row_bytes(widest, DType::f32));
}
int query_kernel_bytes(const KernelRequest& request, const BackwardShape& shape) {
    const int rows = row_pair_bytes(request);
    const int used =
        shape.query_tile * (rows + kRowSumBytes) + shape.stages * shape.key_tile * rows;
    return std::max(used, shape.query_tile * tile_row_bytes(request.head_dim, DType::f32));
}

// Accumulators of one thread where most are alive: the results and two tiles of scores.
int accumulators(const BackwardShape& shape, int result_rows, int result_columns) {
    return (result_rows * result_columns + 2 * shape.query_tile * shape.key_tile) /
           (32 * shape.warps);
}

// Of 255 registers. Floats need more beside them, each operand being split in two; a score_mod
// needs some for itself, above all where its rows stay.
int accumulator_limit(const KernelRequest& request) {
    if (request.dtype == DType::f32) return 150;
    if (!request.has_score_mod) return 200;
    return request.kind == KernelKind::backward_dq ? 150 : 192;
}

KernelConfig select_key(const KernelRequest& request) {
    const int columns = padded_columns(request.head_dim) + padded_columns(request.head_dim_v);
    BackwardShape chosen = kKeyShapes.back();
    for (const BackwardShape& shape : kKeyShapes)
        if (accumulators(shape, shape.key_tile, columns) <= accumulator_limit(request) &&
            key_kernel_bytes(request, shape) <= shared_memory_limit(request.arch)) {
            chosen = shape;
            break;
        }
    KernelConfig config;
    config.template_path = "backward_key.cu";
    config.entry = "flexc_backward_key";
    config.query_tile = chosen.query_tile;
    config.key_tile = chosen.key_tile;
    config.warps = chosen.warps;
    config.stages = chosen.stages;
    config.shared_bytes = key_kernel_bytes(request, chosen);
    // Where results take half of the registers, the template can work on fewer rows at a time, and
    // on fewer still, and then on one element after the other.
    constexpr int kMostSavings = 3;
    const bool crowded =
        chosen.key_tile * (request.head_dim + request.head_dim_v) >= 128 * 32 * chosen.warps;
    const int refused = request.refused - backward_sm90_choices(request);
    config.saves_registers = crowded ? std::clamp(refused, 0, kMostSavings) : 0;
    config.has_next = crowded && refused < kMostSavings;
    config.reason = request.kind == KernelKind::backward_fused
                        ? "dk and dv of a tile of keys, dq by atomic additions"
                        : "dk and dv of a tile of keys, in a fixed order";
    if (request.arch == 90 && request.kind == KernelKind::backward_fused) {
        const std::string_view why = why_not_backward_sm90(request);
        config.reason += "; not Hopper's kernel: ";
        config.reason += why.empty() ? "every tile of it spills registers" : why;
    }
    return config;
}

KernelConfig select_query(const KernelRequest& request) {
    BackwardShape chosen = kQueryShapes.back();
    for (const BackwardShape& shape : kQueryShapes)
        if (accumulators(shape, shape.query_tile, padded_columns(request.head_dim)) <=
                accumulator_limit(request) &&
            query_kernel_bytes(request, shape) <= shared_memory_limit(request.arch)) {
            chosen = shape;
            break;
        }
    KernelConfig config;
    config.template_path = "backward_query.cu";
    config.entry = "flexc_backward_query";
    config.query_tile = chosen.query_tile;
    config.key_tile = chosen.key_tile;
    config.warps = chosen.warps;
    config.stages = chosen.stages;
    config.shared_bytes = query_kernel_bytes(request, chosen);
    config.reason = "dq of a tile of queries, in a fixed order";
    return config;
}

// Kernels that pass over rows once, at the speed of memory.
KernelConfig select_streaming(std::string_view path, std::string_view entry,
                              std::string_view reason) {
    KernelConfig config;
    config.template_path = path;
    config.entry = entry;
    config.query_tile = 128;
    config.key_tile = 128;
    config.warps = 4;
    config.reason = reason;
    return config;
}

} // namespace

KernelConfig select_backward(const KernelRequest& request) {
    if (auto config = select_backward_sm90(request)) return *std::move(config);
    KernelConfig config;
    switch (request.kind) {
    case KernelKind::delta:
        config =
            select_streaming("backward_delta.cu", "flexc_backward_delta", "row sums of d_out * o");
        break;
    case KernelKind::convert:
        config = select_streaming("backward_convert.cu", "flexc_backward_convert",
                                  "dq from its accumulator");
        break;
    case KernelKind::backward_dq: config = select_query(request); break;
    case KernelKind::backward_dkdv:
    case KernelKind::backward_fused: config = select_key(request); break;
    case KernelKind::round_sums:
        config = select_streaming("round_sums.cu", "flexc_round_sums",
                                  "gradients of buffers from their exact sums");
        break;
    case KernelKind::round_gradients:
        config = select_streaming("round_gradients.cu", "flexc_round_gradients",
                                  "gradients of buffers in the buffers' types");
        break;
    case KernelKind::forward:
    case KernelKind::expand:
    case KernelKind::fold:
    case KernelKind::plan: break;
    }
    config.kind = request.kind;
    return config;
}

} // namespace flexc::cuda
