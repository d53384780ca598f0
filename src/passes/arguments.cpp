#include "passes/mod.h"

#include <algorithm>

#include "passes/gradient_order.h"
#include "passes/launch_divisor.h"

namespace flexc::passes {

namespace {

using Kind = ArgumentSlot::Kind;

struct Uses {
    std::vector<bool> buffers, params, sizes;
};

Uses uses_of(const Mod& mod) {
    const ir::Program& program = mod.program;
    Uses uses{std::vector<bool>(program.buffers.size()), std::vector<bool>(program.params.size()),
              std::vector<bool>(program.sizes.size())};
    for (ir::NodeId id : mod.order) {
        const ir::Node& node = program.graph[id];
        if (node.op == ir::Op::read) uses.buffers[node.symbol] = true;
        if (node.op == ir::Op::param) uses.params[node.symbol] = true;
        if (node.op == ir::Op::size) uses.sizes[node.symbol] = true;
    }
    return uses;
}

bool holds(const Mod& mod, const std::vector<ReadGradient>& gradients, std::uint32_t buffer) {
    return std::ranges::any_of(gradients, [&](const ReadGradient& gradient) {
        return mod.program.graph[gradient.read].symbol == buffer;
    });
}

} // namespace

bool has_gradient(const Mod& mod, std::uint32_t buffer) {
    return holds(mod, mod.gradients, buffer) || has_sink_gradient(mod, buffer);
}

bool has_sink_gradient(const Mod& mod, std::uint32_t buffer) {
    return holds(mod, mod.sink_gradients, buffer);
}

bool has_gradients_of_terms(const Mod& mod) {
    return std::ranges::any_of(mod.gradients, [&](const ReadGradient& gradient) {
        return mod.counters[gradient.read] != ir::kNoNode;
    });
}

std::size_t word_of(const std::vector<ArgumentSlot>& slots, const ArgumentSlot& slot) {
    return static_cast<std::size_t>(std::ranges::find(slots, slot) - slots.begin());
}

std::vector<ArgumentSlot> argument_slots(const Mod& mod) {
    if (!mod.arguments.empty()) return mod.arguments;
    const ir::Program& program = mod.program;
    const Uses uses = uses_of(mod);
    std::vector<ArgumentSlot> slots;
    auto per_dim = [&](Kind kind, std::uint32_t buffer) {
        for (std::uint32_t dim = 0; dim < program.buffers[buffer].dims.size(); ++dim)
            slots.push_back({kind, buffer, dim});
    };
    for (std::uint32_t buffer = 0; buffer < program.buffers.size(); ++buffer) {
        if (!uses.buffers[buffer]) continue;
        slots.push_back({Kind::buffer_data, buffer});
        per_dim(Kind::buffer_extent, buffer);
        per_dim(Kind::buffer_stride, buffer);
        if (!has_gradient(mod, buffer)) continue;
        slots.push_back({Kind::gradient_data, buffer});
        per_dim(Kind::gradient_stride, buffer);
    }
    for (std::uint32_t param = 0; param < program.params.size(); ++param)
        if (uses.params[param]) slots.push_back({Kind::param, param});
    for (std::uint32_t size = 0; size < program.sizes.size(); ++size)
        if (uses.sizes[size]) slots.push_back({Kind::size, size});
    for (const ir::NodeId divisor : launch_divisors(mod))
        for (const Kind kind : {Kind::reciprocal, Kind::divisor_sign})
            slots.push_back({kind, divisor});
    if (mod.out_of_range != ir::kNoNode) slots.push_back({Kind::out_of_range});
    if (mod.deterministic && heads_at_once(mod) != HeadsAtOnce::all)
        slots.push_back({Kind::first_kv_head});
    if (!program.is_dense())
        for (const Kind kind : {Kind::sequences, Kind::key_numbers, Kind::key_table_size})
            slots.push_back({kind});
    return slots;
}

std::string slot_name(const ArgumentSlot& slot, const ir::Program& program) {
    auto of_dim = [&](const char* part) {
        return program.buffers[slot.index].name + part + std::to_string(slot.dim);
    };
    // No two names are equal, whatever the buffers are called: each ends in a suffix of its own.
    switch (slot.kind) {
    case Kind::buffer_data: return program.buffers[slot.index].name + "_data";
    case Kind::buffer_extent: return of_dim("_extent_");
    case Kind::buffer_stride: return of_dim("_stride_");
    case Kind::gradient_data: return program.buffers[slot.index].name + "_gradient";
    case Kind::gradient_stride: return of_dim("_gradientstride_");
    case Kind::param: return program.params[slot.index].name + "_param";
    case Kind::size: return program.sizes[slot.index] + "_size";
    case Kind::out_of_range: return "out_of_range";
    case Kind::first_kv_head: return "first_kv_head";
    case Kind::sequences: return "sequences";
    case Kind::key_numbers: return "key_numbers";
    case Kind::key_table_size: return "key_table_size";
    case Kind::reciprocal: return "v" + std::to_string(slot.index) + "_reciprocal";
    case Kind::divisor_sign: return "v" + std::to_string(slot.index) + "_sign";
    }
    return "";
}

} // namespace flexc::passes
