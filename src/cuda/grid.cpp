#include "cuda/select.h"

namespace flexc::cuda {

std::int64_t grid_blocks(const KernelConfig& config, const AttentionArguments& arguments) {
    const bool by_keys =
        config.kind == KernelKind::backward_dkdv || config.kind == KernelKind::backward_fused;
    const std::int64_t heads = by_keys ? arguments.kv_heads : arguments.heads;
    const std::int64_t length = by_keys ? arguments.kv_len : arguments.q_len;
    const std::int64_t tile = by_keys ? config.key_tile : config.query_tile;
    return std::int64_t{arguments.batch} * heads * ((length + tile - 1) / tile);
}

} // namespace flexc::cuda
