#include "distributed/mask_map.h"

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/bind_plan.h"
#include "runtime/buffers.h"
#include "runtime/mask_values.h"
#include "support/text.h"

namespace flexc::distributed {

Result<detail::PlanState> bind_whole(const Kernel& kernel, const Sizes& sizes,
                                     std::span<const NamedTensor> buffers,
                                     const DistributedOptions& options) {
    const detail::KernelState& state = kernel.state();
    PlanOptions plan;
    plan.scale = options.scale;
    plan.params = options.params;
    return runtime::bind_values(state.mod.program, state.options.head_dim, state.options.head_dim_v,
                                sizes, buffers, plan);
}

Result<VisibleMap> mask_map(const passes::Mod& mod, const detail::PlanState& whole, RankWork& work,
                            std::span<const NamedTensor> buffers) {
    using analysis::Dependence;
    using analysis::MaskTier;
    const ir::Program& program = mod.program;
    VisibleMap map(whole.sizes.q_len, whole.sizes.kv_len);
    if (mod.mask_tier == MaskTier::exhaustive) return map;
    std::vector<TensorView> views(program.buffers.size());
    std::vector<Bytes> copies(program.buffers.size());
    for (const ir::NodeId id : ir::reachable(program.graph, std::span(&mod.mask, 1))) {
        const ir::Node& node = program.graph[id];
        if (node.op != ir::Op::read) continue;
        const std::string& name = program.buffers[node.symbol].name;
        const auto given = std::ranges::find(buffers, name, &NamedTensor::name);
        if (given == buffers.end() || !given->tensor)
            return runtime::invalid(
                formatted("'{}': missing; the mask reads it, and decides what travels", name));
        if (views[node.symbol]) continue;
        auto view = work.on_host(given->tensor, copies[node.symbol]);
        if (!view) return view.error();
        views[node.symbol] = *view;
    }
    const Dependence reads = mod.dependence[mod.mask];
    const std::int64_t batches = reads.has(Dependence::b) ? whole.sizes.batch : 1;
    const std::int64_t heads = reads.has(Dependence::h) ? whole.sizes.heads : 1;
    const runtime::MaskValues values(program, whole.size_values, whole.param_words, views);
    for (std::int64_t b = 0; b < batches; ++b)
        for (std::int64_t h = 0; h < heads; ++h) {
            const analysis::TileClassifier tiles(program, mod.mask, values.of_head(b, h),
                                                 map.queries(), map.keys());
            map.add([&](std::int64_t q, std::int64_t kv) {
                return tiles.test(q, kv).value_or(analysis::TileClass::partial);
            });
        }
    return map;
}

} // namespace flexc::distributed
