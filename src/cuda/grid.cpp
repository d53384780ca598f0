#include "cuda/select.h"

namespace flexc::cuda {

std::int64_t grid_blocks(const KernelConfig& config, const AttentionArguments& arguments) {
    const auto blocks = [&](std::int64_t heads, std::int64_t length, std::int64_t tile) {
        return arguments.batch * heads * ((length + tile - 1) / tile);
    };
    switch (config.kind) {
    case KernelKind::backward_dkdv:
    case KernelKind::backward_fused:
        return blocks(arguments.kv_heads, arguments.kv_len, config.key_tile);
    case KernelKind::expand:
    case KernelKind::fold:
        return blocks(arguments.heads, arguments.q_len, config.key_tile) +
               blocks(arguments.heads, arguments.kv_len, config.key_tile);
    case KernelKind::forward:
    case KernelKind::delta:
    case KernelKind::backward_dq:
    case KernelKind::convert:
    case KernelKind::plan:
    case KernelKind::round_sums:
    case KernelKind::round_gradients: break;
    }
    return blocks(arguments.heads, arguments.q_len, config.query_tile);
}

} // namespace flexc::cuda
