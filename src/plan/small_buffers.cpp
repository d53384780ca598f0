#include "plan/small_buffers.h"

#include <cstdint>
#include <set>

namespace flexc::plan {

std::vector<BufferWords> small_buffers(const passes::Mod& mod) {
    using Kind = passes::ArgumentSlot::Kind;
    const std::vector<passes::ArgumentSlot> slots = passes::argument_slots(mod);
    std::set<std::uint32_t> buffers;
    for (const ir::NodeId id : mod.order)
        if (mod.program.graph[id].op == ir::Op::read && passes::has_offset_of_elements(mod, id, 0))
            buffers.insert(mod.program.graph[id].symbol);
    std::vector<BufferWords> result;
    const auto add = [&](std::uint32_t buffer, Kind stride) {
        BufferWords& words = result.emplace_back();
        for (std::uint32_t dim = 0; dim < mod.program.buffers[buffer].dims.size(); ++dim) {
            words.extents.push_back(passes::word_of(slots, {Kind::buffer_extent, buffer, dim}));
            words.strides.push_back(passes::word_of(slots, {stride, buffer, dim}));
        }
    };
    for (const std::uint32_t buffer : buffers) {
        add(buffer, Kind::buffer_stride);
        if (passes::has_gradient(mod, buffer)) add(buffer, Kind::gradient_stride);
    }
    return result;
}

} // namespace flexc::plan
