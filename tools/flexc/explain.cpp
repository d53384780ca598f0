// flexc explain: what the compiler made of a mod, stage by stage.
#include <memory>

#include <nlohmann/json.hpp>

#include "flexc/command.h"
#include "flexc/compile_options.h"
#include "flexc/layout_option.h"
#include "flexc/mod_option.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

struct ExplainOptions {
    ModOption mod;
    KernelOption kernel;
    LayoutOption layout;
    std::vector<std::string> stages;
    std::string arch{kDefaultArch};
    bool json = false;
};

const std::vector<std::string> kStages{"tokens", "ast",  "ir",   "grad", "deps",
                                       "mask",   "plan", "cuda", "llvm"};

void run(const ExplainOptions& options) {
    auto mod = load_mod(options.mod);
    apply(options.kernel, mod.options);
    apply(options.layout, mod.options);
    mod.options.backward = true; // grad, plan, cuda and llvm show both directions
    nlohmann::json value = nlohmann::json::object();
    for (const auto& stage : options.stages) {
        auto text = value_of(explain(mod.text, stage, mod.options, options.arch));
        if (!text.empty() && text.back() != '\n') {
            text += '\n';
        }
        if (options.json) {
            value[stage] = text;
        } else {
            print(stdout, "{}{}", options.stages.size() > 1 ? "== " + stage + "\n" : "", text);
        }
    }
    if (options.json) {
        print_json(value);
    }
}

} // namespace

void add_explain(CommandLine program) {
    auto options = std::make_shared<ExplainOptions>();
    auto command = program.command("explain", "Print stages of a compile as text",
                                   "flexc explain alibi --stage grad,cuda --arch sm_90a");
    add_mod_options(command, options->mod, false);
    command.option("--stage", options->stages,
                   "One or more of tokens,ast,ir,grad,deps,mask,plan,cuda,llvm",
                   {.required = true, .separator = ',', .among = kStages});
    command.option("--arch", options->arch, "GPU architecture of plan and cuda");
    add_kernel_options(command, options->kernel);
    add_layout_options(command, options->layout);
    command.json_flag(options->json);
    command.on_run([options] { run(*options); });
}

} // namespace flexc::cli
