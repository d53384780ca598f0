#include "runtime/backward_workspace.h"

#include "common/exact_sum.h"
#include "runtime/alignment.h"

namespace flexc::runtime {

BackwardWorkspace backward_workspace(const Call& call, const CudaOptions& options,
                                     BackwardForm form) {
    const AttentionArguments& attention = call.attention;
    // Hopper's kernels read and write whole tiles.
    const bool hopper = form == BackwardForm::hopper;
    const auto padded = [hopper](int length) {
        constexpr std::size_t kTile = 128;
        const auto rows = static_cast<std::size_t>(length);
        return hopper ? (rows + kTile - 1) / kTile * kTile : rows;
    };
    const std::size_t heads =
        static_cast<std::size_t>(attention.batch) * static_cast<std::size_t>(attention.heads);
    const std::size_t rows = heads * padded(attention.q_len);
    const std::size_t distances = heads * (padded(attention.q_len) + padded(attention.kv_len));
    BackwardWorkspace result;
    std::size_t end = 0;
    const auto take_bytes = [&end](std::size_t bytes) {
        const std::size_t start = end;
        end += aligned(bytes);
        return start;
    };
    const auto take = [&](std::size_t floats) { return take_bytes(floats * sizeof(float)); };
    result.delta = take(rows);
    result.dq_bytes = form == BackwardForm::split
                          ? 0
                          : rows * static_cast<std::size_t>(options.head_dim) * sizeof(float);
    result.dq_accumulator = take(result.dq_bytes / sizeof(float));
    constexpr std::size_t kSlabRows = 64;
    result.turn_bytes = hopper && options.deterministic ? rows / kSlabRows * sizeof(int) : 0;
    result.turns = take_bytes(result.turn_bytes);
    result.origins = take(hopper ? rows : 0);
    const std::size_t sum_bytes = options.deterministic ? sizeof(exact::Sum) : sizeof(float);
    result.distance_bytes = hopper ? distances * sum_bytes : 0;
    result.distance_sums = take_bytes(result.distance_bytes);
    result.distance_values = take(hopper ? options.distance_reads * distances : 0);
    result.exact_bytes = exact_sum_bytes(options.exact_gradients, call);
    result.exact_sums = take_bytes(result.exact_bytes);
    if (hopper && !options.stored_gradients.buffers.empty()) {
        const std::size_t blocks = static_cast<std::size_t>(attention.batch) *
                                   static_cast<std::size_t>(attention.kv_heads) *
                                   padded(attention.kv_len) / 128;
        result.stored_tile_bytes = 2 * blocks * sizeof(int);
    }
    result.stored_tiles = take_bytes(result.stored_tile_bytes);
    result.bytes = end;
    return result;
}

} // namespace flexc::runtime
