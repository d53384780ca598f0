#include "plan/small_buffers.h"

#include <algorithm>
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
    for (const std::uint32_t buffer : buffers)
        for (const Kind kind : {Kind::buffer_stride, Kind::gradient_stride}) {
            BufferWords words;
            const auto dims = static_cast<std::uint32_t>(mod.program.buffers[buffer].dims.size());
            for (std::uint32_t dim = 0; dim < dims; ++dim) {
                const auto extent = std::ranges::find(
                    slots, passes::ArgumentSlot{Kind::buffer_extent, buffer, dim});
                const auto stride =
                    std::ranges::find(slots, passes::ArgumentSlot{kind, buffer, dim});
                if (extent == slots.end() || stride == slots.end()) continue;
                words.extents.push_back(static_cast<std::size_t>(extent - slots.begin()));
                words.strides.push_back(static_cast<std::size_t>(stride - slots.begin()));
            }
            if (!words.strides.empty()) result.push_back(std::move(words));
        }
    return result;
}

} // namespace flexc::plan
