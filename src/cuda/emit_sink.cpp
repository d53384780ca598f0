#include "cuda/emit_sink.h"

#include <map>
#include <vector>

#include "cuda/emit_gradients.h"
#include "cuda/expressions.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::Place;
using Kind = passes::ArgumentSlot::Kind;

namespace {

constexpr std::string_view kParameters =
    "const Arguments& arguments, int b, int h, int h_kv, int q";

// Computed from nothing, where a row ends: no place before keeps anything for it.
passes::Mod without_places(passes::Mod mod) {
    mod.place.assign(mod.place.size(), Place::element);
    return mod;
}

std::vector<NodeId> roots_of(const Layout& layout, const passes::ReadGradient& gradient) {
    std::vector<NodeId> roots = layout.node(gradient.read).operands;
    roots.push_back(gradient.partial);
    return roots;
}

std::string value(const Layout& layout, NodeId sink) {
    Body body = Body::after_head(layout);
    body.compute({sink});
    body.line("return " + unbracketed(body.text(sink)) + ";");
    return device_function(formatted("float sink({})", kParameters), body);
}

void add(Body& body, const Layout& layout, const passes::ReadGradient& gradient) {
    body.line(formatted("add({}, {});",
                        element_address(body, gradient.read,
                                        {Kind::gradient_data, layout.node(gradient.read).symbol},
                                        Kind::gradient_stride),
                        unbracketed(body.text(gradient.partial))));
}

std::string gradients(const Layout& layout, const std::vector<passes::ReadGradient>& gradients) {
    Body body = Body::after_head(layout);
    std::vector<NodeId> roots;
    std::map<NodeId, std::vector<passes::ReadGradient>> of_terms; // by counter
    for (const passes::ReadGradient& gradient : gradients) {
        std::vector<NodeId> needed = roots_of(layout, gradient);
        if (layout.is_of_term(gradient.read)) {
            of_terms[layout.mod().counters[gradient.read]].push_back(gradient);
            needed = entering(layout, needed);
        }
        roots.insert(roots.end(), needed.begin(), needed.end());
    }
    body.compute(roots);
    for (const passes::ReadGradient& gradient : gradients)
        if (!layout.is_of_term(gradient.read)) add(body, layout, gradient);
    for (const auto& [counter, terms] : of_terms)
        body.loop(counter, [&](Body& inside) {
            std::vector<NodeId> needed;
            for (const passes::ReadGradient& gradient : terms) {
                const std::vector<NodeId> more = roots_of(layout, gradient);
                needed.insert(needed.end(), more.begin(), more.end());
            }
            inside.compute(needed);
            for (const passes::ReadGradient& gradient : terms)
                add(inside, layout, gradient);
        });
    return "template <typename Add>\n" +
           device_function(formatted("void visit_sink_gradients({}, Add add)", kParameters), body);
}

bool takes_lse(const plan::KernelConfig& config) {
    return !config.is_warp_specialized && (config.kind == plan::KernelKind::backward_dq ||
                                           config.kind == plan::KernelKind::backward_dkdv ||
                                           config.kind == plan::KernelKind::backward_fused);
}

} // namespace

bool knows_sink(const passes::Mod& mod, const plan::KernelConfig& config) {
    return mod.sink != ir::kNoNode &&
           (config.kind == plan::KernelKind::forward || config.kind == plan::KernelKind::delta);
}

std::string emit_sink(const passes::Mod& mod, const plan::KernelConfig& config,
                      passes::Precision most) {
    const bool is_delta = config.kind == plan::KernelKind::delta;
    // Of the generic kernels, which take a row's lse as it is where there is none.
    if (takes_lse(config))
        return formatted("constexpr bool kHasSink = {};\n\n", mod.sink != ir::kNoNode);
    if (config.kind != plan::KernelKind::forward && !is_delta) return "";
    const bool has_sink = knows_sink(mod, config);
    std::string text = formatted("constexpr bool kHasSink = {};\n", has_sink);
    if (is_delta)
        text += formatted("constexpr bool kReferencesAreProducts = {};\n",
                          has_sink && mod.program.graph[mod.score].op == ir::Op::score);
    if (!has_sink) {
        text += formatted("__device__ inline float sink({}) {{\n    return 0;\n}}\n", kParameters);
        if (is_delta)
            text += formatted("template <typename Add>\n__device__ inline void "
                              "visit_sink_gradients({}, Add) {{}}\n",
                              kParameters);
        return text + "\n";
    }
    const passes::Mod flat = without_places(mod);
    std::vector<NodeId> roots = {mod.sink};
    text += value(Layout(flat, roots, most), mod.sink);
    if (!is_delta) return text;
    roots.clear();
    const Layout all(flat, roots, most);
    for (const passes::ReadGradient& gradient : mod.sink_gradients) {
        const std::vector<NodeId> needed = roots_of(all, gradient);
        roots.insert(roots.end(), needed.begin(), needed.end());
    }
    return text + gradients(Layout(flat, roots, most), mod.sink_gradients);
}

} // namespace flexc::cuda
