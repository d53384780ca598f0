#include "runtime/copied_matrices.h"

#include <algorithm>

#include "passes/gradient_sum.h"
#include "passes/matrix_read.h"

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
    for (std::uint32_t dim = 0; dim < node.operands.size(); ++dim)
        matrix.strides.push_back(
            word({is_gradient ? gradient_stride : buffer_stride, node.symbol, dim}));
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

bool have_aligned_rows(const std::vector<CopiedMatrix>& matrices, const Call& call) {
    return std::ranges::all_of(
        matrices, [&](const CopiedMatrix& matrix) { return has_aligned_rows(matrix, call); });
}

} // namespace flexc::runtime
