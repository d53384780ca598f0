#include "passes/pipeline.h"

#include <array>
#include <chrono>
#include <limits>
#include <map>

#include "dsl/diagnostic.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "passes/bounds.h"
#include "passes/decide.h"
#include "passes/derive.h"
#include "passes/facts.h"
#include "passes/gradient_passes.h"
#include "passes/inside_calls.h"
#include "passes/limits.h"
#include "passes/roots.h"
#include "passes/simplify.h"
#include "support/text.h"

namespace flexc::passes {

using ir::kNoNode;
using ir::NodeId;
using ir::Op;

namespace {

struct State {
    Mod mod;
    const PipelineOptions& options;
};

// The error for a program whose score or mask exceeds a limit.
Error beyond_limit(const State& state, NodeId root, std::string message, std::string hint) {
    if (state.options.source == nullptr)
        return Error{ErrorCode::limit, formatted("{}: {}", message, hint)};
    return Error{ErrorCode::limit,
                 dsl::render(*state.options.source, {.span = state.mod.program.graph[root].span,
                                                     .message = std::move(message),
                                                     .hint = std::move(hint)})};
}

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
    Mod& mod = state.mod;
    simplify(mod.program, roots_of(mod));
    merge_gradients(mod);
    if (mod.sink != kNoNode &&
        Builder(mod.program.graph).is_real(mod.sink, -std::numeric_limits<double>::infinity())) {
        mod.sink = kNoNode; // it has no weight
        mod.sink_gradients.clear();
    }
    return {};
}

Result<void> decide_all(State& state) {
    decide(state.mod.program, roots_of(state.mod));
    return simplify_all(state);
}

std::vector<NodeId> learned_reads(const ir::Program& program, NodeId root) {
    std::vector<NodeId> reads;
    for (NodeId id : ir::reachable(program.graph, std::span(&root, 1)))
        if (program.graph[id].op == Op::read && program.buffers[program.graph[id].symbol].grad)
            reads.push_back(id);
    return reads;
}

Result<void> derive_sink(State& state) {
    Mod& mod = state.mod;
    const std::vector<NodeId> leaves = learned_reads(mod.program, mod.sink);
    const auto slopes = derive(mod.program.graph, mod.sink, leaves);
    if (!slopes)
        return beyond_limit(
            state, mod.sink,
            formatted("the derivative of this sink needs more than {} nodes", kMaxDerivativeNodes),
            "read grad buffers at fewer places, use fewer operations, or compile without backward");
    for (std::size_t i = 0; i < leaves.size(); ++i)
        if ((*slopes)[i] != kNoNode) mod.sink_gradients.push_back({leaves[i], (*slopes)[i]});
    return {};
}

Result<void> derive_all(State& state) {
    if (!state.options.backward) return {};
    Mod& mod = state.mod;
    ir::Graph& graph = mod.program.graph;
    std::vector<NodeId> leaves = {graph.ambient(Op::score)};
    for (NodeId read : learned_reads(mod.program, mod.score))
        leaves.push_back(read);
    const auto slopes = derive(graph, mod.score, leaves);
    if (!slopes)
        return beyond_limit(
            state, mod.score,
            formatted("the derivative of this score_mod needs more than {} nodes",
                      kMaxDerivativeNodes),
            "read grad buffers at fewer places, use fewer operations, or compile without backward");
    mod.d_score = (*slopes)[0] == kNoNode ? graph.real(0) : (*slopes)[0];
    for (std::size_t i = 1; i < leaves.size(); ++i)
        if ((*slopes)[i] != kNoNode) mod.gradients.push_back({leaves[i], (*slopes)[i]});
    return mod.sink == kNoNode ? Result<void>() : derive_sink(state);
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
        mod.out_of_range = out_of_range(mod.program, mod.score, mod.mask, mod.sink);
    return {};
}

Result<void> analyse(State& state) {
    Mod& mod = state.mod;
    mod.order = ir::reachable(mod.program.graph, root_nodes(mod));
    find_facts(mod);
    mod.mask_tier = analysis::tier_of(mod.program.graph, mod.mask, mod.band);
    return {};
}

// Decides how gradients of captured reads may be summed.
Result<void> find_sums(State& state) {
    const SumOptions options{.divides_by_derivative = state.options.divides_by_derivative,
                             .rows_are_whole = state.options.rows_are_whole};
    std::vector<Mod> inside_calls = mods_of_inside_calls(state.mod);
    find_gradient_sums(state.mod, options);
    for (Mod& inside : inside_calls) {
        inside.arguments = argument_slots(state.mod);
        find_gradient_sums(inside, options);
    }
    std::erase_if(inside_calls, [](const Mod& inside) { return !are_few_kinds_summed(inside); });
    state.mod.inside_calls = std::move(inside_calls);
    return {};
}

Result<void> verify_all(State& state) {
    Mod& mod = state.mod;
    mod.program.score = mod.score;
    mod.program.mask = mod.mask;
    mod.program.sink = mod.sink;
    std::string message = ir::verify(mod.program);
    if (message.empty()) message = ir::verify(mod.program, root_nodes(mod));
    // Back ends look up every node.
    if (message.empty() && mod.place.size() != mod.program.graph.size())
        message = formatted("facts are known of {} nodes of {}", mod.place.size(),
                            mod.program.graph.size());
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
    Pass{"analyse", analyse},
    Pass{"gradient-sums", find_sums},
    Pass{"verify", verify_all},
};

} // namespace

Result<Mod> lower(ir::Program program, const PipelineOptions& options) {
    if (std::string message = ir::verify(program); !message.empty())
        return Error{ErrorCode::internal, "the program given to the passes is wrong: " + message};
    State state{{}, options};
    state.mod.score = program.score;
    state.mod.mask = program.mask;
    state.mod.sink = program.sink;
    state.mod.program = std::move(program);
    state.mod.deterministic = options.deterministic;
    for (const Pass& pass : kPasses) {
        const auto start = std::chrono::steady_clock::now();
        if (auto done = pass.run(state); !done) return done.error();
        if (ir::reachable(state.mod.program.graph, root_nodes(state.mod)).size() > kMaxNodes)
            return beyond_limit(
                state, state.mod.score,
                formatted("this program needs more than {} nodes after {}", kMaxNodes, pass.name),
                "use fewer operations, or compile without backward or reports of reads outside");
        if (!options.trace) continue;
        const std::chrono::duration<double, std::milli> took =
            std::chrono::steady_clock::now() - start;
        options.trace(pass.name, ir::print(state.mod.program, named_roots(state.mod)),
                      took.count());
    }
    return std::move(state.mod);
}

} // namespace flexc::passes
