#include "cuda/emit_sink.h"

#include <map>
#include <vector>

#include "cuda/arch/family_text.h"
#include "cuda/emit_gradients.h"
#include "cuda/expressions.h"
#include "cuda/policy.h"
#include "passes/element_sums.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::Place;
using Kind = passes::ArgumentSlot::Kind;

namespace {

constexpr std::string_view kParameters =
    "const Arguments& arguments, int b, int h, int h_kv, int q";

// The mod with all values computed where they are used: at the end of a row, no earlier place has
// kept any.
passes::Mod without_places(passes::Mod mod) {
    mod.place.assign(mod.place.size(), Place::element);
    return mod;
}

std::vector<NodeId> roots_of(const Layout& layout, const passes::ReadGradient& gradient) {
    std::vector<NodeId> roots = layout.node(gradient.read).operands;
    roots.push_back(gradient.partial);
    return roots;
}

Body value(const Layout& layout, NodeId sink) {
    Body body = Body::after_head(layout);
    body.compute({sink});
    body.line("return " + unbracketed(body.text(sink)) + ";");
    return body;
}

void add(Body& body, const Layout& layout, const passes::ReadGradient& gradient) {
    body.line(formatted("add({}, {});",
                        element_address(body, gradient.read,
                                        {Kind::gradient_data, layout.node(gradient.read).symbol},
                                        Kind::gradient_stride),
                        unbracketed(body.text(gradient.partial))));
}

Body gradients(const Layout& layout, const std::vector<passes::ReadGradient>& gradients) {
    Body body = Body::after_head(layout);
    std::vector<NodeId> roots;
    std::map<NodeId, std::vector<passes::ReadGradient>> of_terms; // by counter
    for (const passes::ReadGradient& gradient : gradients) {
        std::vector<NodeId> needed = roots_of(layout, gradient);
        if (layout.is_of_term(gradient.read)) {
            of_terms[layout.mod().counters[gradient.read]].push_back(gradient);
            needed = passes::entering(layout.mod(), needed);
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
    return body;
}

bool takes_lse(const plan::KernelConfig& config) {
    return !has_backward_policies(config) && (config.kind == plan::KernelKind::backward_dq ||
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
    Policy policy("Sink");
    // Generic kernels read a row's lse directly if the program has no sink.
    if (takes_lse(config)) policy.constant("kExists", mod.sink != ir::kNoNode);
    if (!knows_sink(mod, config)) return policy.text();
    policy.constant("kExists", true);
    const passes::Mod flat = without_places(mod);
    std::vector<NodeId> roots = {mod.sink};
    policy.function(formatted("float value({})", kParameters),
                    value(Layout(flat, roots, most), mod.sink));
    if (config.kind != plan::KernelKind::delta) return policy.text();
    policy.constant("kReferencesAreProducts", mod.program.graph[mod.score].op == ir::Op::score);
    roots.clear();
    const Layout all(flat, roots, most);
    for (const passes::ReadGradient& gradient : mod.sink_gradients) {
        const std::vector<NodeId> needed = roots_of(all, gradient);
        roots.insert(roots.end(), needed.begin(), needed.end());
    }
    policy.member("    template <typename Add>\n");
    policy.function(formatted("void visit_gradients({}, Add add)", kParameters),
                    gradients(Layout(flat, roots, most), mod.sink_gradients));
    return policy.text();
}

} // namespace flexc::cuda
