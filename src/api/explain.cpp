#include "api/backend.h"
#include "api/frontend.h"
#include "cpu/emit_llvm.h"
#include "dsl/ast.h"
#include "dsl/lexer.h"
#include "dsl/parser.h"
#include "flexc/compile.h"
#include "passes/describe.h"
#include "support/text.h"

namespace flexc {

namespace {

Result<std::string> explain_text(std::string_view text, std::string_view stage,
                                 const CompileOptions& options) {
    const dsl::Source source(options.source_name, std::string(text));
    if (stage == "tokens") return dsl::print_tokens(source);
    const dsl::Parsed parsed = dsl::parse(source);
    if (dsl::has_errors(parsed.diagnostics))
        return Error{ErrorCode::syntax, dsl::render(source, parsed.diagnostics)};
    return dsl::print_ast(parsed.ast);
}

} // namespace

Result<std::string> explain(std::string_view text, std::string_view stage,
                            const CompileOptions& given, std::string_view arch) {
    return guarded([&]() -> Result<std::string> {
        auto options = api::complete(given);
        if (!options) return options.error();
        if (stage == "tokens" || stage == "ast") return explain_text(text, stage, *options);
        if (stage == "llvm") options->device = Device::cpu();
        auto mod = api::lower_text(text, *options);
        if (!mod) return mod.error();
        if (stage == "ir") return passes::describe_ir(*mod);
        if (stage == "grad") return passes::describe_gradient(*mod);
        if (stage == "deps") return api::explain_dependence(*mod, *options);
        if (stage == "mask") return passes::describe_mask(*mod);
        if (stage == "llvm") return cpu::generated_llvm(*mod);
        if (stage == "cuda") return api::explain_cuda(*mod, *options, arch);
        if (stage == "plan") return api::explain_plan(*mod, *options, arch);
        return Error{ErrorCode::invalid_option,
                     formatted("there is no stage '{}'; the stages are tokens, ast, ir, grad, "
                               "deps, mask, plan, cuda and llvm",
                               stage)};
    });
}

} // namespace flexc
