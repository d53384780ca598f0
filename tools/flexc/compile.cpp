// flexc compile: machine code for an architecture that need not be here.
#include <filesystem>
#include <memory>

#include <nlohmann/json.hpp>

#include "flexc/command.h"
#include "flexc/compile_options.h"
#include "flexc/layout_option.h"
#include "flexc/mod_option.h"
#include "flexc/whole_file.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

namespace fs = std::filesystem;

struct CompileCommand {
    ModOption mod;
    KernelOption kernel;
    LayoutOption layout;
    std::string arch{kDefaultArch};
    std::string folder;
    bool short_sequences = false, few_queries = false, no_cache = false, json = false;
};

nlohmann::json as_json(const OfflineResult& result) {
    nlohmann::json value{{"compile_ms", result.compile_ms},
                         {"cached", result.cached},
                         {"kernels", nlohmann::json::array()}};
    for (const auto& cubin : result.kernels) {
        value["kernels"].push_back({{"name", cubin.info.name},
                                    {"registers", cubin.info.registers},
                                    {"spill_bytes", cubin.info.spill_bytes},
                                    {"helper_spill_bytes", cubin.info.helper_spill_bytes},
                                    {"shared_bytes", cubin.info.shared_bytes},
                                    {"compile_ms", cubin.info.compile_ms},
                                    {"reason", cubin.info.reason},
                                    {"file", cubin.pack_name}});
        if (!cubin.info.schedule.empty()) {
            value["kernels"].back()["schedule"] = cubin.info.schedule;
        }
    }
    return value;
}

void write_pack(const std::string& folder, const OfflineResult& result) {
    std::error_code failure;
    fs::create_directories(folder, failure);
    if (failure) {
        fail(formatted("{}: {}", folder, failure.message()));
    }
    for (const auto& cubin : result.kernels) {
        const std::string_view bytes = cubin.pack_bytes;
        require(write_whole_file((fs::path(folder) / cubin.pack_name).string(), {&bytes, 1}));
    }
}

void run(const CompileCommand& options) {
    auto mod = load_mod(options.mod);
    apply(options.kernel, mod.options);
    apply(options.layout, mod.options);
    if (options.no_cache) {
        mod.options.cache = {.memory = false, .disk = false};
    }
    const auto result = value_of(compile_offline(mod.text, mod.options, options.arch,
                                                 {.any_layout = !options.folder.empty(),
                                                  .short_sequences = options.short_sequences,
                                                  .few_queries = options.few_queries}));
    if (!options.folder.empty()) {
        write_pack(options.folder, result);
    }
    const auto value = as_json(result);
    options.json ? print_json(value) : print_json_indented(value);
}

} // namespace

void add_compile(CommandLine program) {
    auto options = std::make_shared<CompileCommand>();
    auto command =
        program.command("compile", "Compile for a GPU architecture; needs no GPU, prints JSON",
                        "flexc compile alibi --arch sm_90a --dtype bf16 --head-dim 128 --backward");
    add_mod_options(command, options->mod, false);
    command.option("--arch", options->arch, "sm_80, sm_90a, sm_100, ...");
    add_kernel_options(command, options->kernel);
    add_layout_options(command, options->layout);
    command.option("-o,--output", options->folder,
                   "Write a pack into this folder: with FLEXC_PACK=DIR the program needs no NVRTC",
                   {.file = true});
    command.flag("--short-sequences", options->short_sequences,
                 "Also what calls with 1,024 sequences and more of at most 512 rows need");
    command.flag("--few-queries", options->few_queries,
                 "Also what calls with at most 64 queries of all heads that share keys need");
    command.flag("--no-cache", options->no_cache, "Neither read nor write the kernel cache");
    command.json_flag(options->json);
    command.on_run([options] { run(*options); });
}

} // namespace flexc::cli
