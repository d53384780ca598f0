#include "passes/pipeline.h"

#include <array>
#include <chrono>
#include <map>

#include "ir/print.h"
#include "ir/verify.h"
#include "passes/bounds.h"
#include "passes/decide.h"
#include "passes/derive.h"
#include "passes/hoist.h"
#include "passes/roots.h"
#include "passes/row_gradient.h"
#include "passes/simplify.h"

namespace flexc::passes {

using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

struct State {
    Mod mod;
    const PipelineOptions& options;
};

// Head dims that the caller fixed become constants, in expressions and in the dims of buffers.
Result<void> specialise(State& state) {
    const std::array fixed = {std::pair<std::uint32_t, int>{ir::kD, state.options.head_dim},
                              std::pair<std::uint32_t, int>{ir::kDv, state.options.head_dim_v}};
    Mod& mod = state.mod;
    for (ir::Buffer& buffer : mod.program.buffers)
        for (ir::Dim& dim : buffer.dims)
            for (auto [size, value] : fixed)
                if (value != 0 && dim.size == size) dim = {.constant = value};
    substitute(mod, [&](const ir::Node& node) -> std::optional<std::int64_t> {
        for (auto [size, value] : fixed)
            if (value != 0 && node.op == Op::size && node.symbol == size) return value;
        return {};
    });
    return {};
}

Result<void> simplify_all(State& state) {
    simplify(state.mod.program, roots_of(state.mod));
    merge_gradients(state.mod);
    return {};
}

Result<void> decide_all(State& state) {
    decide(state.mod.program, roots_of(state.mod));
    return simplify_all(state);
}

Result<void> derive_all(State& state) {
    if (!state.options.backward) return {};
    Mod& mod = state.mod;
    ir::Graph& graph = mod.program.graph;
    std::vector<NodeId> leaves = {graph.ambient(Op::score)};
    for (NodeId id : ir::reachable(graph, std::span(&mod.score, 1)))
        if (graph[id].op == Op::read && mod.program.buffers[graph[id].symbol].grad)
            leaves.push_back(id);
    auto slopes = derive(graph, mod.score, leaves);
    if (!slopes) return slopes.error();
    mod.d_score = (*slopes)[0] == kNoNode ? graph.real(0) : (*slopes)[0];
    for (std::size_t i = 1; i < leaves.size(); ++i)
        if ((*slopes)[i] != kNoNode) mod.gradients.push_back({leaves[i], (*slopes)[i]});
    return {};
}

Result<void> find_band(State& state) {
    ir::Graph& graph = state.mod.program.graph;
    analysis::Band& band = state.mod.band;
    band = analysis::band_of(graph, state.mod.mask);
    if (!band.exact && state.options.clamps_bands && graph[state.mod.mask].op != Op::const_bool)
        if (auto clamped = analysis::clamped_band_of(graph, state.mod.mask))
            band = std::move(*clamped);
    return {};
}

Result<void> find_bounds(State& state) {
    Mod& mod = state.mod;
    if (state.options.report_out_of_range)
        mod.out_of_range = out_of_range(mod.program, mod.score, mod.mask);
    return {};
}

Result<void> find_rows(State& state) {
    find_row_gradients(state.mod);
    return {};
}

Result<void> analyse(State& state) {
    Mod& mod = state.mod;
    mod.order = ir::reachable(mod.program.graph, root_nodes(mod));
    mod.dependence = analysis::dependences(mod.program.graph);
    mod.counters = ir::counters_of(mod.program.graph);
    mod.ranges = analysis::ranges(mod.program);
    mod.mask_tier = analysis::tier_of(mod.program.graph, mod.mask, mod.band);
    return {};
}

Result<void> hoist_all(State& state) {
    state.mod.place = hoist(state.mod.dependence, state.mod.counters);
    return {};
}

Result<void> verify_all(State& state) {
    Mod& mod = state.mod;
    mod.program.score = mod.score;
    mod.program.mask = mod.mask;
    std::string message = ir::verify(mod.program);
    if (message.empty()) message = ir::verify(mod.program, root_nodes(mod));
    if (!message.empty()) return Error{ErrorCode::internal, "after the passes, " + message};
    return {};
}

struct Pass {
    std::string_view name;
    Result<void> (*run)(State&);
};

constexpr std::array kPasses = {
    Pass{"specialise", specialise},
    Pass{"simplify", simplify_all},
    Pass{"decide", decide_all},
    Pass{"derive", derive_all},
    Pass{"simplify-derivative", simplify_all},
    Pass{"band", find_band},
    Pass{"bounds", find_bounds},
    Pass{"simplify-facts", simplify_all},
    Pass{"rows", find_rows},
    Pass{"analyse", analyse},
    Pass{"hoist", hoist_all},
    Pass{"verify", verify_all},
};

} // namespace

Result<Mod> lower(ir::Program program, const PipelineOptions& options) {
    if (std::string message = ir::verify(program); !message.empty())
        return Error{ErrorCode::internal, "the program given to the passes is wrong: " + message};
    State state{{}, options};
    state.mod.score = program.score;
    state.mod.mask = program.mask;
    state.mod.program = std::move(program);
    state.mod.deterministic = options.deterministic;
    for (const Pass& pass : kPasses) {
        const auto start = std::chrono::steady_clock::now();
        if (auto done = pass.run(state); !done) return done.error();
        if (!options.trace) continue;
        const std::chrono::duration<double, std::milli> took =
            std::chrono::steady_clock::now() - start;
        options.trace(pass.name, ir::print(state.mod.program, named_roots(state.mod)),
                      took.count());
    }
    return std::move(state.mod);
}

} // namespace flexc::passes
