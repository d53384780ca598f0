#include "passes/sink.h"

#include <utility>

#include "passes/hoist.h"

namespace flexc::passes {

Mod sink_mod(const Mod& mod) {
    Mod sink = mod;
    ir::Graph& graph = sink.program.graph;
    const ir::NodeId first_new = graph.size();
    sink.score = mod.sink;
    sink.mask = graph.boolean(true);
    sink.d_score = mod.d_score == ir::kNoNode ? ir::kNoNode : graph.real(0);
    // Swapped, not moved: argument slots are made for the gradients of both, in either program.
    std::swap(sink.gradients, sink.sink_gradients);
    sink.band = {};
    sink.mask_tier = analysis::MaskTier::constant;
    sink.out_of_range = ir::kNoNode;
    sink.is_line_of_row = false;
    for (ir::NodeId id = first_new; id < graph.size(); ++id)
        sink.order.push_back(id);
    sink.dependence = analysis::dependences(graph);
    sink.counters = ir::counters_of(graph);
    sink.ranges = analysis::ranges(sink.program);
    sink.place = hoist(sink.dependence, sink.counters);
    return sink;
}

} // namespace flexc::passes
