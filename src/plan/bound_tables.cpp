#include "plan/bound_tables.h"

#include <utility>

#include "passes/gradient_sum.h"
#include "passes/table_gradient.h"

namespace flexc::plan {

std::vector<BoundTables> bound_tables(const passes::Mod& mod, const KernelConfig& config) {
    using Kind = passes::ArgumentSlot::Kind;
    if (!config.storage.entries_are_bound) return {};
    const std::vector<passes::ArgumentSlot> slots = passes::argument_slots(mod);
    BoundTables all{.tables = {}, .most_entries = config.storage.entries};
    for (const passes::ReadGradient& gradient : mod.gradients) {
        if (passes::gradient_sum(mod, gradient, config.sums) != passes::GradientSum::table)
            continue;
        BoundTables::Table table;
        const std::uint32_t buffer = mod.program.graph[gradient.read].symbol;
        for (const std::uint32_t at : passes::varying_dims(mod, gradient.read)) {
            const ir::Dim& dim = mod.program.buffers[buffer].dims[at];
            if (dim.is_constant())
                table.known *= dim.constant;
            else
                table.bound.push_back(passes::word_of(slots, {Kind::buffer_extent, buffer, at}));
        }
        all.tables.push_back(std::move(table));
    }
    return {std::move(all)};
}

std::vector<BoundTables> bound_kinds(const passes::Mod& mod, const passes::KeyKinds& kinds) {
    using Kind = passes::ArgumentSlot::Kind;
    const std::vector<passes::ArgumentSlot> slots = passes::argument_slots(mod);
    std::vector<BoundTables> tables;
    for (const auto& [buffer, dim, most] : kinds.bound)
        tables.push_back(
            {.tables = {{.bound = {passes::word_of(slots, {Kind::buffer_extent, buffer, dim})}}},
             .most_entries = most});
    return tables;
}

} // namespace flexc::plan
