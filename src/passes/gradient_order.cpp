#include "passes/gradient_order.h"

#include <algorithm>
#include <optional>

namespace flexc::passes {

using analysis::Dependence;
using ir::NodeId;
using ir::Op;

namespace {

// What an integer gains from one position to the next, if it is a sum of that position and of what
// a head has for all of its elements.
std::optional<int> gain(const Mod& mod, NodeId id, Op position) {
    const Dependence uses = mod.dependence[id];
    if (!uses.has(Dependence::q) && !uses.has(Dependence::kv) && !uses.has(Dependence::score))
        return 0;
    const ir::Node& node = mod.program.graph[id];
    if (node.op == position) return 1;
    if (node.op != Op::iadd && node.op != Op::isub) return {};
    const auto x = gain(mod, node.operands[0], position), y = gain(mod, node.operands[1], position);
    if (!x || !y) return {};
    return node.op == Op::iadd ? *x + *y : *x - *y;
}

bool tells_apart(const Mod& mod, NodeId read, Op position) {
    return std::ranges::any_of(mod.program.graph[read].operands, [&](NodeId index) {
        return gain(mod, index, position).value_or(0) != 0;
    });
}

bool has_index(const Mod& mod, NodeId read, Op value) {
    return std::ranges::any_of(mod.program.graph[read].operands,
                               [&](NodeId index) { return mod.program.graph[index].op == value; });
}

std::uint32_t buffer_of(const Mod& mod, const ReadGradient& gradient) {
    return mod.program.graph[gradient.read].symbol;
}

} // namespace

bool is_dense_gradient(const Mod& mod, std::uint32_t buffer) {
    const ReadGradient* only = nullptr;
    for (const ReadGradient& gradient : mod.gradients) {
        if (buffer_of(mod, gradient) != buffer) continue;
        if (only != nullptr) return false;
        only = &gradient;
    }
    return only != nullptr && tells_apart(mod, only->read, Op::q_idx) &&
           tells_apart(mod, only->read, Op::kv_idx);
}

std::vector<std::uint32_t> exact_gradients(const Mod& mod) {
    std::vector<std::uint32_t> buffers;
    for (const ReadGradient& gradient : mod.gradients) {
        const std::uint32_t buffer = buffer_of(mod, gradient);
        if (!is_dense_gradient(mod, buffer) && std::ranges::find(buffers, buffer) == buffers.end())
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
        // Query heads that share keys belong to one block, which adds them in their order.
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
