#include "runtime/cuda_workspace.h"

#include "common/exact_sum.h"
#include "common/expanded.h"
#include "runtime/alignment.h"

namespace flexc::runtime {

namespace {

// One part after the other.
class Parts {
  public:
    std::size_t take_bytes(std::size_t bytes) {
        const std::size_t start = end_;
        end_ += aligned(bytes);
        return start;
    }
    std::size_t take(std::size_t floats) { return take_bytes(floats * sizeof(float)); }
    std::size_t end() const { return end_; }

  private:
    std::size_t end_ = 0;
};

std::size_t heads_of(const AttentionArguments& attention) {
    return static_cast<std::size_t>(attention.batch) * static_cast<std::size_t>(attention.heads);
}
std::size_t lengthened(int rows, int overhang) {
    return static_cast<std::size_t>(expanded_length(rows, overhang));
}

} // namespace

ForwardWorkspace forward_workspace(const AttentionArguments& attention,
                                   const cuda::ExpandedValues& expanded) {
    constexpr std::size_t kCopies = 2; // of a vector by distance
    const std::size_t heads = static_cast<std::size_t>(expanded.by_batch ? attention.batch : 1) *
                              static_cast<std::size_t>(expanded.by_head ? attention.heads : 1);
    const std::size_t keys = heads * lengthened(attention.kv_len, kForwardOverhang);
    const std::size_t distances = keys + heads * lengthened(attention.q_len, kForwardOverhang);
    const auto key_vectors = static_cast<std::size_t>(expanded.keys);
    const auto distance_vectors = static_cast<std::size_t>(expanded.distances);
    Parts parts;
    ForwardWorkspace result;
    result.distance_values = parts.take(kCopies * distance_vectors * distances);
    result.key_values = parts.take(key_vectors * keys);
    result.bytes = parts.end();
    const std::size_t entries =
        (distance_vectors == 0 ? 0 : distances) + (key_vectors == 0 ? 0 : keys);
    result.blocks = static_cast<std::int64_t>(entries / kExpandedStep);
    return result;
}

BackwardWorkspace backward_workspace(const Call& call, const CudaOptions& options,
                                     BackwardForm form) {
    const AttentionArguments& attention = call.attention;
    // Hopper's kernels read and write whole tiles.
    const bool hopper = form == BackwardForm::hopper;
    const auto padded = [hopper](int length) {
        return hopper ? lengthened(length, 0) : static_cast<std::size_t>(length);
    };
    const std::size_t heads = heads_of(attention);
    const std::size_t rows = heads * padded(attention.q_len);
    const std::size_t distances = heads * (padded(attention.q_len) + padded(attention.kv_len));
    BackwardWorkspace result;
    Parts parts;
    result.delta = parts.take(rows);
    result.dq_bytes = form == BackwardForm::split
                          ? 0
                          : rows * static_cast<std::size_t>(options.head_dim) * sizeof(float);
    result.dq_accumulator = parts.take(result.dq_bytes / sizeof(float));
    constexpr std::size_t kSlabRows = 64;
    result.turn_bytes = hopper && options.deterministic ? rows / kSlabRows * sizeof(int) : 0;
    result.turns = parts.take_bytes(result.turn_bytes);
    result.origins = parts.take(hopper ? rows : 0);
    const std::size_t sum_bytes = options.deterministic ? sizeof(exact::Sum) : sizeof(float);
    result.distance_bytes = hopper ? distances * sum_bytes : 0;
    result.distance_sums = parts.take_bytes(result.distance_bytes);
    result.distance_values = parts.take(hopper ? options.distance_reads * distances : 0);
    result.exact_bytes = exact_sum_bytes(options.exact_gradients, call);
    result.exact_sums = parts.take_bytes(result.exact_bytes);
    constexpr std::size_t kKeyTile = 128;
    if (hopper && !options.stored_gradients.buffers.empty())
        result.stored_tile_bytes = 2 * sizeof(int) * static_cast<std::size_t>(attention.batch) *
                                   static_cast<std::size_t>(attention.kv_heads) *
                                   (padded(attention.kv_len) / kKeyTile);
    result.stored_tiles = parts.take_bytes(result.stored_tile_bytes);
    result.blocks_done =
        parts.take_bytes(hopper ? sizeof(int) * static_cast<std::size_t>(attention.batch) *
                                      static_cast<std::size_t>(attention.kv_heads)
                                : 0);
    result.tiles_taken = parts.take_bytes(hopper ? sizeof(int) : 0);
    result.slab_states = parts.take_bytes(hopper ? rows / kSlabRows * sizeof(int) : 0);
    result.bytes = parts.end();
    return result;
}

} // namespace flexc::runtime
