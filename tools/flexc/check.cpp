// flexc check: parse, type-check, print the signature.
#include <memory>

#include <nlohmann/json.hpp>

#include "flexc/command.h"
#include "flexc/compile_options.h"
#include "flexc/mod_option.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

struct CheckOptions {
    ModOption mod;
    KernelOption kernel;
    std::string device, arch;
    bool json = false;
};

std::string describe_default(const ParamInfo& param) {
    if (!param.has_default) {
        return "";
    }
    if (param.type == "bool") {
        return param.default_value != 0 ? " = true" : " = false";
    }
    return formatted(" = {}", param.default_value);
}

void print_text(const Signature& signature) {
    for (const auto& buffer : signature.buffers) {
        print(stdout, "buffer {}: {}[{}]{}\n", buffer.name, name(buffer.dtype),
              joined(buffer.dims, ", "), buffer.grad ? " grad" : "");
    }
    for (const auto& param : signature.params) {
        print(stdout, "param  {}: {}{}\n", param.name, param.type, describe_default(param));
    }
    if (!signature.sizes.empty()) {
        print(stdout, "sizes  {}\n", joined(signature.sizes, ", "));
    }
    print(stdout, "score_mod uses {}\n", signature.score_depends_on);
    print(stdout, "mask_mod  {}{}\n",
          signature.mask_depends_on.empty() ? "none: all is visible" : "uses ",
          signature.mask_depends_on);
    if (!signature.sink_depends_on.empty()) {
        print(stdout, "sink uses {}\n", signature.sink_depends_on);
    }
}

void print_as_json(const Signature& signature) {
    nlohmann::json value{{"buffers", nlohmann::json::array()},
                         {"params", nlohmann::json::array()},
                         {"sizes", signature.sizes},
                         {"score_depends_on", signature.score_depends_on},
                         {"mask_depends_on", signature.mask_depends_on},
                         {"sink_depends_on", signature.sink_depends_on},
                         {"warnings", signature.warnings}};
    for (const auto& buffer : signature.buffers) {
        value["buffers"].push_back({{"name", buffer.name},
                                    {"dtype", name(buffer.dtype)},
                                    {"dims", buffer.dims},
                                    {"grad", buffer.grad}});
    }
    for (const auto& param : signature.params) {
        nlohmann::json entry{{"name", param.name}, {"type", param.type}};
        if (param.has_default) {
            entry["default"] = param.default_value;
        }
        value["params"].push_back(std::move(entry));
    }
    print_json(value);
}

void run(const CheckOptions& options) {
    auto mod = load_mod(options.mod);
    const auto signature = signature_of(mod);
    if (!options.device.empty() || !options.arch.empty()) {
        apply(options.kernel, mod.options);
        if (!options.device.empty()) {
            mod.options.device = parse_device(options.device);
        }
        require(supports(mod.text, mod.options, options.arch));
    }
    if (options.json) {
        return print_as_json(signature);
    }
    for (const auto& warning : signature.warnings) {
        print(stderr, "{}\n", warning);
    }
    print_text(signature);
}

} // namespace

void add_check(CommandLine program) {
    auto options = std::make_shared<CheckOptions>();
    auto command = program.command("check", "Check a mod and print what it declares and uses",
                                   "flexc check -e 'score + slopes[h] * (kv_idx - q_idx)' "
                                   "--buffer 'slopes: f32[H] grad'");
    add_mod_options(command, options->mod, true);
    command.option("--device", options->device,
                   "Also whether kernels with the options below can be made here for auto, cpu, "
                   "cuda or cuda:N");
    command.option("--arch", options->arch, "The same for sm_80, sm_90a, sm_100, ...");
    add_kernel_options(command, options->kernel);
    command.json_flag(options->json);
    command.on_run([options] { run(*options); });
}

} // namespace flexc::cli
