#include "cuda/emit_sink.h"

#include <vector>

#include "cuda/arch/family_text.h"
#include "cuda/expressions.h"
#include "cuda/kernel_gradients.h"
#include "cuda/policy.h"
#include "passes/element_sums.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::Place;

namespace {

constexpr std::string_view kParameters =
    "const Arguments& arguments, int b, int h, int h_kv, int q";

// The mod with all values computed where they are used: at the end of a row, no earlier place has
// kept any.
passes::Mod without_places(passes::Mod mod) {
    mod.place.assign(mod.place.size(), Place::element);
    return mod;
}

std::vector<NodeId> roots_of(const passes::Mod& mod,
                             const std::vector<passes::ReadGradient>& gradients) {
    return gradient_roots(mod, gradients, {&passes::ReadGradient::partial});
}

Body value(const SymbolTable& symbols, NodeId sink) {
    Body body = Body::after_head(symbols);
    body.compute({sink});
    body.line("return " + unbracketed(body.text(sink)) + ";");
    return body;
}

void add(Body& body, const passes::ReadGradient& gradient) {
    body.line(formatted("add({}, {});", body.gradient_address(gradient.read),
                        unbracketed(body.text(gradient.partial))));
}

Body gradients(const SymbolTable& symbols, const std::vector<passes::ReadGradient>& gradients) {
    Body body = Body::after_head(symbols);
    std::vector<NodeId> roots;
    for (const passes::ReadGradient& gradient : gradients) {
        std::vector<NodeId> needed = roots_of(symbols.mod(), {gradient});
        if (symbols.is_of_term(gradient.read)) needed = passes::entering(symbols.mod(), needed);
        roots.insert(roots.end(), needed.begin(), needed.end());
    }
    body.compute(roots);
    for (const passes::ReadGradient& gradient : gradients)
        if (!symbols.is_of_term(gradient.read)) add(body, gradient);
    for (const auto& [counter, terms] : by_counter(symbols.mod(), gradients))
        body.loop(counter, [&](Body& inside) {
            inside.compute(roots_of(symbols.mod(), terms));
            for (const passes::ReadGradient& gradient : terms)
                add(inside, gradient);
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
    policy.function(formatted("float value({})", kParameters),
                    value(SymbolTable(flat, {mod.sink}, most), mod.sink));
    if (config.kind != plan::KernelKind::delta) return policy.text();
    policy.constant("kReferencesAreProducts", mod.program.graph[mod.score].op == ir::Op::score);
    policy.member("    template <typename Add>\n");
    policy.function(
        formatted("void visit_gradients({}, Add add)", kParameters),
        gradients(SymbolTable(flat, roots_of(mod, mod.sink_gradients), most), mod.sink_gradients));
    return policy.text();
}

} // namespace flexc::cuda
