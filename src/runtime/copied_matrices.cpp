#include "runtime/copied_matrices.h"

#include <algorithm>
#include <bit>

#include "cuda/fold.h"
#include "passes/gradient_sum.h"

namespace flexc::runtime {

using passes::ArgumentSlot;

namespace {

CopiedMatrix matrix_of(const passes::Mod& mod, const std::vector<ArgumentSlot>& slots,
                       ir::NodeId read, bool is_gradient) {
    const ir::Node& node = mod.program.graph[read];
    const auto word = [&](ArgumentSlot slot) {
        return static_cast<std::size_t>(std::ranges::find(slots, slot) - slots.begin());
    };
    using enum ArgumentSlot::Kind;
    CopiedMatrix matrix;
    matrix.data = word({is_gradient ? gradient_data : buffer_data, node.symbol});
    for (std::uint32_t dim = 0; dim < node.operands.size(); ++dim) {
        matrix.extents.push_back(word({buffer_extent, node.symbol, dim}));
        matrix.strides.push_back(
            word({is_gradient ? gradient_stride : buffer_stride, node.symbol, dim}));
        matrix.by_query.push_back(mod.program.graph[node.operands[dim]].op == ir::Op::q_idx);
    }
    matrix.element_bytes =
        size_of(is_gradient ? DType::f32 : mod.program.buffers[node.symbol].dtype);
    return matrix;
}

bool has_aligned_rows(const CopiedMatrix& matrix, const Call& call) {
    constexpr std::uint64_t kAlignment = 16;
    // Strides may be negative; that is of no account for whether they are multiples.
    const auto is_aligned = [&](std::uint64_t elements) {
        return elements * matrix.element_bytes % kAlignment == 0;
    };
    const auto [heads, keys] = std::pair(std::span(matrix.strides).first(matrix.strides.size() - 1),
                                         matrix.strides.back());
    return call.words[matrix.data] % kAlignment == 0 && call.words[keys] == 1 &&
           is_aligned(static_cast<std::uint64_t>(call.attention.kv_len)) &&
           is_aligned(static_cast<std::uint64_t>(call.attention.kv_offset)) &&
           std::ranges::all_of(heads,
                               [&](std::size_t word) { return is_aligned(call.words[word]); });
}

} // namespace

std::optional<CopiedMatrix> copied_biases(const passes::Mod& mod) {
    const cuda::FoldedMod folded = cuda::fold_score(mod);
    if (folded.parts.bias_read == ir::kNoNode) return {};
    return matrix_of(folded.mod, passes::argument_slots(mod), folded.parts.bias_read, false);
}

std::optional<cuda::MatrixLayout> rows_of(const CopiedMatrix& matrix, const Call& call) {
    const auto word = [&](std::size_t index) {
        return static_cast<std::int64_t>(call.words[index]);
    };
    const std::size_t keys = matrix.strides.size() - 1;
    std::int64_t step = 0;
    for (std::size_t dim = 0; dim < keys; ++dim) {
        if (!matrix.by_query[dim]) continue;
        if (step != 0) return {};
        step = word(matrix.strides[dim]);
    }
    if (step <= 0 || word(matrix.strides[keys]) != 1) return {};
    // From the first element of all to the last: in its row, and in rows.
    std::int64_t columns = 0, rows = 0;
    for (std::size_t dim = 0; dim <= keys; ++dim) {
        const std::int64_t stride = word(matrix.strides[dim]);
        const std::int64_t steps = word(matrix.extents[dim]) - 1;
        if (stride < 0 || steps < 0) return {};
        if (steps == 0) continue;
        if (stride % step == 0)
            rows += steps * (stride / step);
        else
            columns += steps * stride;
    }
    if (columns >= step) return {};
    return cuda::MatrixLayout{.data = std::bit_cast<void*>(call.words[matrix.data]),
                              .element_bytes = static_cast<int>(matrix.element_bytes),
                              .columns = static_cast<std::uint64_t>(columns + 1),
                              .rows = static_cast<std::uint64_t>(rows + 1),
                              .row_step = static_cast<std::uint64_t>(step)};
}

std::vector<CopiedMatrix> copied_matrices(const passes::Mod& mod,
                                          const cuda::KernelConfig& config) {
    const std::vector<ArgumentSlot> slots = passes::argument_slots(mod);
    std::vector<CopiedMatrix> matrices;
    if (config.bias_stages > 0)
        matrices.push_back(matrix_of(mod, slots, passes::matrix_of_score(mod), false));
    const passes::TileSums tile{config.key_width, config.adds_matrices};
    for (const passes::ReadGradient& gradient : mod.gradients)
        if (passes::gradient_sum(mod, gradient, tile) == passes::GradientSum::matrix)
            matrices.push_back(matrix_of(mod, slots, gradient.read, true));
    return matrices;
}

StoredGradients stored_gradients(const passes::Mod& mod, const cuda::KernelConfig& config) {
    const auto sharing = passes::sharing_of_matrices(mod);
    if (!config.adds_matrices || !sharing) return {};
    StoredGradients stored{{}, *sharing};
    for (const passes::ReadGradient& gradient : mod.gradients)
        if (passes::gradient_sum(mod, gradient) == passes::GradientSum::matrix)
            stored.buffers.push_back(mod.program.graph[gradient.read].symbol);
    return stored;
}

bool StoredGradients::holds(std::uint32_t buffer) const {
    return std::ranges::find(buffers, buffer) != buffers.end();
}

bool StoredGradients::are_whole(const Call& call) const {
    const AttentionArguments& attention = call.attention;
    const std::int64_t heads = sharing.heads   ? 1
                               : sharing.group ? attention.kv_heads
                                               : attention.heads;
    const std::int64_t elements = (sharing.batches ? 1 : std::int64_t{attention.batch}) * heads *
                                  attention.q_len * attention.kv_len;
    return !buffers.empty() && std::ranges::all_of(buffers, [&](std::uint32_t buffer) {
        return call.gradients[buffer].elements() == elements;
    });
}

bool have_aligned_rows(const std::vector<CopiedMatrix>& matrices, const Call& call) {
    return std::ranges::all_of(
        matrices, [&](const CopiedMatrix& matrix) { return has_aligned_rows(matrix, call); });
}

} // namespace flexc::runtime
