#include "cuda/nvrtc.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "cuda/nvrtc_guard.h"
#include "plan/target.h"
#include "support/dynlib.h"
#include "support/env.h"
#include "support/text.h"

namespace flexc::cuda {

namespace {

// Prototypes of our own, so that the build needs no CUDA toolkit.
using Program = struct ProgramHandle*;
constexpr int kSuccess = 0;
constexpr int kCompilationError = 6;
// Older versions lack some options and instructions that templates use.
constexpr int kOldestMajor = 12;

struct Nvrtc {
    int (*version)(int* major, int* minor) = nullptr;
    const char* (*error_string)(int) = nullptr;
    int (*create)(Program*, const char* source, const char* name, int headers, const char* const*,
                  const char* const*) = nullptr;
    int (*destroy)(Program*) = nullptr;
    int (*compile)(Program, int options, const char* const*) = nullptr;
    int (*log_size)(Program, std::size_t*) = nullptr;
    int (*log)(Program, char*) = nullptr;
    int (*cubin_size)(Program, std::size_t*) = nullptr;
    int (*cubin)(Program, char*) = nullptr;
    int (*architecture_count)(int*) = nullptr; // this one and the next may be missing
    int (*architectures)(int*) = nullptr;
    // Since 12.8: the callback is asked between NVRTC's steps whether to stop. The last step can
    // take long.
    int (*set_flow_callback)(Program, int (*)(void* payload, void*), void* payload) = nullptr;
    NvrtcInfo info;
};

std::string bind(const support::DynamicLibrary& library, Nvrtc& api) {
    const bool complete = library.symbol("nvrtcVersion", api.version) &&
                          library.symbol("nvrtcGetErrorString", api.error_string) &&
                          library.symbol("nvrtcCreateProgram", api.create) &&
                          library.symbol("nvrtcDestroyProgram", api.destroy) &&
                          library.symbol("nvrtcCompileProgram", api.compile) &&
                          library.symbol("nvrtcGetProgramLogSize", api.log_size) &&
                          library.symbol("nvrtcGetProgramLog", api.log) &&
                          library.symbol("nvrtcGetCUBINSize", api.cubin_size) &&
                          library.symbol("nvrtcGetCUBIN", api.cubin);
    if (!complete) return "not an NVRTC that can make cubins";
    if (api.version(&api.info.major, &api.info.minor) != kSuccess) return "does not tell a version";
    if (api.info.major < kOldestMajor)
        return formatted("version {}.{} is older than {}.0", api.info.major, api.info.minor,
                         kOldestMajor);
    library.symbol("nvrtcGetNumSupportedArchs", api.architecture_count);
    library.symbol("nvrtcGetSupportedArchs", api.architectures);
    library.symbol("nvrtcSetFlowCallback", api.set_flow_callback);
    return "";
}

void describe(const support::DynamicLibrary& library, Nvrtc& api) {
    NvrtcInfo& info = api.info;
    info.path = library.path();
    int count = 0;
    if (api.architecture_count == nullptr || api.architectures == nullptr ||
        api.architecture_count(&count) != kSuccess || count <= 0)
        return;
    info.architectures.resize(static_cast<std::size_t>(count));
    if (api.architectures(info.architectures.data()) != kSuccess) info.architectures.clear();
}

std::vector<std::string> search_patterns() {
    std::vector<std::string> patterns;
    for (const char* root : {"${VIRTUAL_ENV}", "${CONDA_PREFIX}", "${ORIGIN}/../..",
                             "${ORIGIN}/../../..", "/usr/local", "/usr", "${HOME}/.local"})
        for (const char* packages : {"lib/python3*/site-packages", "lib/python3*/dist-packages"})
            for (const char* wheel : {"nvidia/cu1[2-9]/lib", "nvidia/cuda_nvrtc/lib"})
                patterns.push_back(formatted("{}/{}/{}/libnvrtc.so.1*", root, packages, wheel));
    // flexc itself may be inside a wheel, next to NVIDIA's.
    for (const char* wheel : {"nvidia/cu1[2-9]/lib", "nvidia/cuda_nvrtc/lib"})
        for (const char* up : {"..", "../.."})
            patterns.push_back(formatted("${{ORIGIN}}/{}/{}/libnvrtc.so.1*", up, wheel));
    patterns.push_back("${CONDA_PREFIX}/lib/libnvrtc.so.1*");
    for (const char* root :
         {"${CUDA_PATH}", "${CUDA_HOME}", "/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda"})
        for (const char* folder : {"lib64", "lib", "targets/*/lib"})
            patterns.push_back(formatted("{}/{}/libnvrtc.so.1*", root, folder));
    return patterns;
}

Error ending() {
    return {ErrorCode::cancelled, "the process ends: NVRTC compiles nothing any more"};
}

Result<Nvrtc> open_nvrtc() {
    const NvrtcGuard guard;
    if (exit_has_begun()) return ending();
    Nvrtc api;
    const support::LibrarySearch search = support::find_library(
        {.name = "NVRTC",
         .exact_path = support::Variable::nvrtc,
         .loaded_prefix = "libnvrtc.so",
         .sonames = {"libnvrtc.so.13", "libnvrtc.so.12"},
         .patterns = search_patterns(),
         .objection = [&](const support::DynamicLibrary& library) { return bind(library, api); }});
    if (!search)
        return Error{ErrorCode::library_missing,
                     "NVRTC (CUDA's run-time compiler) was not found. Install it with `pip install "
                     "nvidia-cuda-nvrtc` or set FLEXC_NVRTC to its path. Tried:\n" +
                         search.describe()};
    describe(*search.library, api);
    return api;
}

// Never destroyed: threads may compile while the process ends.
const Result<Nvrtc>& nvrtc() {
    static const auto& kNvrtc = *new Result<Nvrtc>(open_nvrtc());
    return kNvrtc;
}

// Destroys the program on every way out.
struct OwnedProgram {
    const Nvrtc& api;
    Program handle = nullptr;
    explicit OwnedProgram(const Nvrtc& nvrtc_api) : api(nvrtc_api) {}
    OwnedProgram(const OwnedProgram&) = delete;
    OwnedProgram& operator=(const OwnedProgram&) = delete;
    ~OwnedProgram() {
        if (handle != nullptr) api.destroy(&handle);
    }
};

std::string log_of(const Nvrtc& api, Program program) {
    std::size_t size = 0;
    if (api.log_size(program, &size) != kSuccess || size <= 1) return "";
    std::string log(size, '\0');
    if (api.log(program, log.data()) != kSuccess) return "";
    log.resize(size - 1); // ends in a zero
    std::ranges::replace(log, '\0', '\n'); // what follows a zero is why the assembler gave up
    return log;
}

Error failure(const Nvrtc& api, int status, const Translation& translation, std::string_view arch,
              const std::string& log) {
    std::string message =
        formatted("NVRTC {}.{} could not compile {} for {}: {}", api.info.major, api.info.minor,
                  translation.main.path.view(), arch, api.error_string(status));
    if (!log.empty()) message += "\n" + log;
    return {status == kCompilationError ? ErrorCode::compile_failed : ErrorCode::internal, message};
}

Result<void> check_arch(const NvrtcInfo& nvrtc, std::string_view arch) {
    const std::vector<int>& known = nvrtc.architectures;
    if (known.empty() || std::ranges::find(known, plan::arch_number(arch)) != known.end())
        return {};
    return Error{ErrorCode::invalid_option,
                 formatted("NVRTC {}.{} has no architecture {}; it has sm_{}", nvrtc.major,
                           nvrtc.minor, arch, joined(known, ", sm_"))};
}

} // namespace

Result<NvrtcInfo> nvrtc_info() {
    const Result<Nvrtc>& api = nvrtc();
    if (!api) return api.error();
    return api->info;
}

Result<void> check_nvrtc(std::string_view arch) {
    const Result<Nvrtc>& api = nvrtc();
    if (!api) return api.error();
    return check_arch(api->info, arch);
}

bool lacks_registers(const Error& error) {
    return error.code == ErrorCode::compile_failed &&
           error.message.find("Register allocation failed") != std::string::npos;
}

std::vector<std::string> nvrtc_options(std::string_view arch) {
    std::vector<std::string> options = {formatted("--gpu-architecture={}", arch), "--std=c++17",
                                        "-default-device", "--ptxas-options=-v"};
    if (support::environment_flag(support::Variable::lineinfo)) options.push_back("-lineinfo");
    return options;
}

namespace {

Result<NvrtcOutput> compile_now(const Translation& translation, std::string_view arch,
                                const support::Watch& watch) {
    if (auto checked = check_nvrtc(arch); !checked) return checked.error();
    const Nvrtc& api = *nvrtc();

    std::vector<const char*> names, texts, options;
    for (const SourceFile& header : translation.headers) {
        names.push_back(header.path.c_str());
        texts.push_back(header.text.c_str());
    }
    const std::vector<std::string> option_texts = nvrtc_options(arch);
    for (const std::string& option : option_texts)
        options.push_back(option.c_str());
    // An answer from NVRTC's own cache, which came with 12.9, has no log to read registers from.
    if (std::pair(api.info.major, api.info.minor) >= std::pair(12, 9))
        options.push_back("--no-cache");

    const auto start = std::chrono::steady_clock::now();
    const NvrtcGuard guard;
    if (exit_has_begun()) return ending();
    OwnedProgram program(api);
    int status =
        api.create(&program.handle, translation.main.text.c_str(), translation.main.path.c_str(),
                   static_cast<int>(names.size()), texts.data(), names.data());
    if (status != kSuccess) return failure(api, status, translation, arch, "");
    if (api.set_flow_callback != nullptr)
        api.set_flow_callback(
            program.handle,
            [](void* payload, void*) {
                register_exit_handler();
                const auto* const asked = static_cast<const support::Watch*>(payload);
                return exit_has_begun() || asked->is_over() ? 1 : 0;
            },
            const_cast<support::Watch*>(&watch));
    status = api.compile(program.handle, static_cast<int>(options.size()), options.data());
    if (status != kSuccess) {
        if (exit_has_begun()) return ending();
        if (auto checked = watch.check(); !checked) return checked.error();
    }
    NvrtcOutput output;
    output.log = log_of(api, program.handle);
    if (status != kSuccess) return failure(api, status, translation, arch, output.log);

    std::size_t size = 0;
    status = api.cubin_size(program.handle, &size);
    output.cubin.resize(size);
    if (status == kSuccess) status = api.cubin(program.handle, output.cubin.data());
    if (status != kSuccess) return failure(api, status, translation, arch, output.log);
    output.kernels = parse_ptxas_log(output.log);
    output.milliseconds =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return output;
}

} // namespace

Result<NvrtcOutput> compile_cubin(const Translation& translation, std::string_view arch,
                                  const support::Watch& watch) {
    return watch.run<NvrtcOutput>([translation, arch = std::string(arch), watch] {
        return compile_now(translation, arch, watch);
    });
}

} // namespace flexc::cuda
