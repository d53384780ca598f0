#include "passes/gradient_order.h"

#include <algorithm>

namespace flexc::passes {

using analysis::AffineForm;
using ir::NodeId;
using ir::Op;

namespace {

// Whether one index of the read depends on this position alone, with a constant stride.
bool tells_apart(const Mod& mod, NodeId read, std::int64_t AffineForm::* position) {
    return std::ranges::any_of(mod.program.graph[read].operands, [&](NodeId index) {
        const AffineForm& form = mod.affine[index];
        return form.*position != 0 && form.q * form.kv == 0 &&
               !form.rest_uses(analysis::kInsideHead);
    });
}

// Whether a dim has an entry for each value of this position, and no more, and the index is that.
bool covers(const Mod& mod, NodeId read, Op position, std::uint32_t size) {
    const ir::Node& node = mod.program.graph[read];
    const std::vector<ir::Dim>& dims = mod.program.buffers[node.symbol].dims;
    for (std::size_t i = 0; i < node.operands.size(); ++i)
        if (mod.program.graph[node.operands[i]].op == position && !dims[i].is_constant() &&
            dims[i].size == size)
            return true;
    return false;
}

bool has_index(const Mod& mod, NodeId read, Op value) {
    return std::ranges::any_of(mod.program.graph[read].operands,
                               [&](NodeId index) { return mod.program.graph[index].op == value; });
}

std::uint32_t buffer_of(const Mod& mod, const ReadGradient& gradient) {
    return mod.program.graph[gradient.read].symbol;
}

const ShiftedRead* shifted_read(const Mod& mod, const ReadGradient& gradient) {
    const auto found = std::ranges::find(mod.shifted_reads, gradient.read, &ShiftedRead::read);
    return found == mod.shifted_reads.end() ? nullptr : &*found;
}

// Null if several gradients, or several terms of one, add to the buffer's.
const ReadGradient* only_gradient(const Mod& mod, std::uint32_t buffer) {
    if (has_sink_gradient(mod, buffer)) return nullptr;
    const ReadGradient* only = nullptr;
    for (const ReadGradient& gradient : mod.gradients) {
        if (buffer_of(mod, gradient) != buffer) continue;
        if (only != nullptr) return nullptr;
        only = &gradient;
    }
    return only != nullptr && mod.counters[only->read] == ir::kNoNode ? only : nullptr;
}

} // namespace

bool is_dense_gradient(const Mod& mod, std::uint32_t buffer) {
    const ReadGradient* const only = only_gradient(mod, buffer);
    return only != nullptr && tells_apart(mod, only->read, &AffineForm::q) &&
           tells_apart(mod, only->read, &AffineForm::kv);
}

bool are_apart(const Mod& mod, const ReadGradient& gradient) {
    const ShiftedRead* const shifted = shifted_read(mod, gradient);
    return shifted != nullptr && only_gradient(mod, buffer_of(mod, gradient)) != nullptr &&
           has_index(mod, gradient.read, Op::b) && has_index(mod, gradient.read, Op::h) &&
           tells_apart(mod, gradient.read, shifted->by_key ? &AffineForm::kv : &AffineForm::q);
}

bool has_whole_lines(const Mod& mod, const ReadGradient& gradient) {
    if (!are_apart(mod, gradient)) return false;
    const ShiftedRead& shifted = *shifted_read(mod, gradient);
    if (shifted.least != ir::kNoNode || shifted.most != ir::kNoNode) return false;
    const std::vector<NodeId>& indices = mod.program.graph[gradient.read].operands;
    constexpr std::size_t kDims = 4; // these three, and along the line
    const auto [position, length] =
        shifted.by_key ? std::pair(Op::kv_idx, ir::kKvLen) : std::pair(Op::q_idx, ir::kQLen);
    return indices.size() == kDims && covers(mod, gradient.read, Op::b, ir::kB) &&
           covers(mod, gradient.read, Op::h, ir::kH) &&
           covers(mod, gradient.read, position, length);
}

std::vector<std::uint32_t> exact_gradients(const Mod& mod) {
    std::vector<std::uint32_t> buffers;
    for (const std::vector<ReadGradient>* gradients : {&mod.gradients, &mod.sink_gradients})
        for (const ReadGradient& gradient : *gradients) {
            const std::uint32_t buffer = buffer_of(mod, gradient);
            if (!is_dense_gradient(mod, buffer) &&
                std::ranges::find(buffers, buffer) == buffers.end())
                buffers.push_back(buffer);
        }
    return buffers;
}

bool has_dense_gradient(const Mod& mod) {
    return std::ranges::any_of(mod.gradients, [&](const ReadGradient& gradient) {
        return is_dense_gradient(mod, buffer_of(mod, gradient));
    });
}

HeadsAtOnce heads_at_once(const Mod& mod) {
    HeadsAtOnce result = HeadsAtOnce::all;
    for (const ReadGradient& gradient : mod.gradients) {
        if (!is_dense_gradient(mod, buffer_of(mod, gradient))) continue;
        // Query heads that share keys belong to one block, which adds them in a fixed order.
        const bool by_head =
            has_index(mod, gradient.read, Op::h) || has_index(mod, gradient.read, Op::h_kv);
        const bool by_batch = has_index(mod, gradient.read, Op::b);
        const HeadsAtOnce here = !by_head    ? HeadsAtOnce::one
                                 : !by_batch ? HeadsAtOnce::of_batch
                                             : HeadsAtOnce::all;
        result = std::max(result, here);
    }
    return result;
}

} // namespace flexc::passes
