// flexc compile: machine code for an architecture that need not be here.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "flexc/command.h"
#include "flexc/compile_options.h"
#include "flexc/mod_option.h"

namespace flexc::cli {
namespace {

namespace fs = std::filesystem;

struct CompileCommand {
    ModOption mod;
    KernelOption kernel;
    std::string arch = "sm_90a";
    std::string folder;
    bool no_cache = false, json = false;
};

nlohmann::json describe(const OfflineResult& result) {
    nlohmann::json value{{"compile_ms", result.compile_ms},
                         {"cached", result.cached},
                         {"kernels", nlohmann::json::array()}};
    for (const auto& cubin : result.kernels) {
        value["kernels"].push_back({{"name", cubin.info.name},
                                    {"registers", cubin.info.registers},
                                    {"spill_bytes", cubin.info.spill_bytes},
                                    {"shared_bytes", cubin.info.shared_bytes},
                                    {"compile_ms", cubin.info.compile_ms},
                                    {"reason", cubin.info.reason}});
    }
    return value;
}

// Names its error by the file, and leaves nothing behind where writing fails.
void write_file(const fs::path& path, const std::string& bytes) {
    const auto temporary = path.string() + ".tmp";
    std::ofstream stream(temporary, std::ios::binary | std::ios::trunc);
    stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    stream.close();
    std::error_code failure;
    if (stream) {
        fs::rename(temporary, path, failure);
    }
    if (!stream || failure) {
        const auto reason = failure ? failure.message() : std::string(std::strerror(errno));
        fs::remove(temporary, failure);
        fail(fmt::format("{}: {}", path.string(), reason));
    }
}

// The manifest is written last: a folder with one holds every module that it names.
void write_pack(const CompileCommand& options, const ModText& mod, const OfflineResult& result,
                nlohmann::json manifest) {
    const fs::path folder(options.folder);
    std::error_code failure;
    fs::create_directories(folder, failure);
    if (failure) {
        fail(fmt::format("{}: {}", options.folder, failure.message()));
    }
    for (std::size_t i = 0; i < result.kernels.size(); ++i) {
        const auto file = fmt::format("{}_{}.cubin", i, result.kernels[i].info.name);
        write_file(folder / file, result.kernels[i].bytes);
        manifest["kernels"][i]["file"] = file;
        manifest["kernels"][i]["bytes"] = result.kernels[i].bytes.size();
    }
    manifest["format"] = 1;
    manifest["flexc"] = version();
    manifest["arch"] = options.arch;
    manifest["dtype"] = name(mod.options.dtype);
    manifest["head_dim"] = mod.options.head_dim;
    manifest["head_dim_v"] =
        mod.options.head_dim_v == 0 ? mod.options.head_dim : mod.options.head_dim_v;
    manifest["program"] = mod.text;
    manifest["mask_mod"] = mod.options.mask_mod;
    write_file(folder / "manifest.json", manifest.dump(2) + "\n");
}

void run(const CompileCommand& options) {
    auto mod = load_mod(options.mod);
    apply(options.kernel, mod.options);
    if (options.no_cache) {
        mod.options.cache = {.memory = false, .disk = false};
    }
    const auto result = value_of(compile_offline(mod.text, mod.options, options.arch));
    const auto value = describe(result);
    if (!options.folder.empty()) {
        write_pack(options, mod, result, value);
    }
    options.json ? print_json(value) : print_json_indented(value);
}

} // namespace

void add_compile(CLI::App& app) {
    auto options = std::make_shared<CompileCommand>();
    auto& command =
        add_command(app, "compile", "Compile for a GPU architecture; needs no GPU, prints JSON",
                    "flexc compile alibi --arch sm_90a --dtype bf16 --head-dim 128 --backward");
    add_mod_options(command, options->mod, false);
    command.add_option("--arch", options->arch, "sm_80, sm_90a, sm_100, ...");
    add_kernel_options(command, options->kernel);
    command.add_option("-o,--output", options->folder,
                       "Write the cubins and manifest.json into this folder");
    command.add_flag("--no-cache", options->no_cache, "Neither read nor write the kernel cache");
    add_json_flag(command, options->json);
    command.callback([options] { run(*options); });
}

} // namespace flexc::cli
