#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "api/backend.h"
#include "api/context.h"
#include "cache/digest.h"
#include "cuda/driver.h"
#include "cuda/emit.h"
#include "cuda/fill.h"
#include "cuda/fold.h"
#include "cuda/nvrtc.h"
#include "cuda/select.h"
#include "flexc/version.h"
#include "runtime/cuda_executable.h"
#include "support/log.h"

namespace flexc::api {

namespace {

using cuda::KernelKind;
using runtime::CudaKernel;

struct Target {
    std::string arch; // "sm_90a"
    int number = 0;   // 90
};

struct CompiledKernel {
    CudaKernel kernel;
    bool cached = false;
};

Error unsupported(std::string message) { return {ErrorCode::unsupported, std::move(message)}; }

Result<std::vector<KernelKind>> kinds_of(const passes::Mod& mod, const CompileOptions& options) {
    std::vector<KernelKind> kinds = {KernelKind::forward};
    if (!options.backward) return kinds;
    if (options.deterministic && options.backward_kernel == BackwardKernel::fused)
        return unsupported("the fused backward kernel adds into dq in no fixed order: use "
                           "--backward-kernel split with --deterministic");
    if (options.deterministic && !mod.gradients.empty())
        return unsupported("on CUDA, gradients of captured buffers are summed in no fixed order; "
                           "the CPU backend is deterministic");
    kinds.push_back(KernelKind::delta);
    if (options.deterministic || options.backward_kernel == BackwardKernel::split) {
        kinds.push_back(KernelKind::backward_dkdv);
        kinds.push_back(KernelKind::backward_dq);
    } else {
        kinds.push_back(KernelKind::backward_fused);
        kinds.push_back(KernelKind::convert);
    }
    return kinds;
}

// What a choice of configuration starts from.
struct Preference {
    bool generic = false; // only kernels that take tensors of any layout
    int refused = 0;      // configurations that compiled badly before
};

cuda::KernelConfig configure(const passes::Mod& mod, const CompileOptions& options, KernelKind kind,
                             const Target& target, Preference preference = {}) {
    const ir::Graph& graph = mod.program.graph;
    return cuda::select_kernel({.kind = kind,
                                .arch = target.number,
                                .dtype = options.dtype,
                                .head_dim = options.head_dim,
                                .head_dim_v = options.head_dim_v,
                                .has_score_mod = graph[mod.score].op != ir::Op::score,
                                .has_mask = graph[mod.mask].op != ir::Op::const_bool,
                                .reports_out_of_range = options.report_out_of_range,
                                .reads_bias = kind == KernelKind::forward && cuda::reads_bias(mod),
                                .generic = preference.generic,
                                .refused = preference.refused});
}

std::string mod_text(const passes::Mod& mod, const CompileOptions& options,
                     const cuda::KernelConfig& config) {
    return cuda::emit_mod(
        mod, config,
        {.dtype = options.dtype, .head_dim = options.head_dim, .head_dim_v = options.head_dim_v});
}

// registers, spills, shared bytes and compile time of an entry, and how many configurations were
// refused before it, as text: "168 0 98304 412.5 0"
std::string encode(const KernelInfo& info, int refused) {
    return fmt::format("{} {} {} {} {}", info.registers, info.spill_bytes, info.shared_bytes,
                       info.compile_ms, refused);
}

bool decode(std::string_view text, KernelInfo& info, int& refused) {
    auto next = [&text](auto& value) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error != std::errc()) return false;
        text.remove_prefix(static_cast<std::size_t>(end - text.data()));
        if (!text.empty()) text.remove_prefix(1);
        return true;
    };
    return next(info.registers) && next(info.spill_bytes) && next(info.shared_bytes) &&
           next(info.compile_ms) && next(refused);
}

// Whatever reaches the compiler. Its own version is not here: a cubin stays right when NVRTC is
// updated, and finding the version would load a library of 100 MB that a hit does not need.
cache::Digest source_of(const cuda::Translation& translation) {
    cache::DigestBuilder text;
    text.field("main", translation.text);
    for (const cuda::SourceFile& header : translation.headers)
        text.field(header.path, header.text);
    return text.finish();
}

// Hopper's kernels lose more than half of their speed when registers spill or products are
// serialised; others are the last resort already.
bool compiled_badly(const cuda::KernelConfig& config, const cuda::NvrtcOutput& output) {
    return config.hopper && std::ranges::any_of(output.kernels, [](const cuda::KernelUsage& usage) {
               return usage.serialised || usage.spill_store_bytes > 0;
           });
}

Result<CompiledKernel> compile_kernel(const passes::Mod& mod, const CompileOptions& options,
                                      KernelKind kind, const Target& target, cache::Store& store,
                                      Preference preference = {}) {
    const support::Log log(options.log);
    CompiledKernel result;
    CudaKernel& kernel = result.kernel;
    const auto use = [&](const cuda::KernelConfig& config) {
        kernel.config = config;
        kernel.info = {.name = std::string(config.entry), .reason = config.reason};
    };
    const auto translate = [&] {
        return cuda::fill_template(kernel.config, mod_text(mod, options, kernel.config));
    };
    use(configure(mod, options, kind, target, preference));
    auto translation = translate();
    if (!translation) return translation.error();

    // The entry stands under the text of the first choice, and says which choice it became.
    const cache::Digest source = source_of(*translation);
    cache::DigestBuilder key;
    key.field("kind", "cubin").field("flexc", FLEXC_VERSION).field("source", source);
    for (const std::string& option : cuda::nvrtc_options(target.arch))
        key.field("option", option);

    if (auto entry = store.load(key.finish(), source, log)) {
        if (decode(entry->metadata, kernel.info, preference.refused)) {
            kernel.config = configure(mod, options, kind, target, preference);
            kernel.info.reason = kernel.config.reason;
            kernel.info.name = kernel.config.entry;
            kernel.cubin = std::move(entry->payload);
            result.cached = true;
            return result;
        }
        store.discard(key.finish(), log); // else it would stay, and every process compile again
    }
    auto compiled = cuda::compile_cubin(*translation, target.arch);
    while (compiled && compiled_badly(kernel.config, *compiled)) {
        log.info("{} with tiles of {} x {} spills or serialises: the next smaller one is tried",
                 kernel.config.entry, kernel.config.query_tile, kernel.config.key_tile);
        ++preference.refused;
        use(configure(mod, options, kind, target, preference));
        translation = translate();
        if (!translation) return translation.error();
        compiled = cuda::compile_cubin(*translation, target.arch);
    }
    if (!compiled) return compiled.error();
    kernel.info.compile_ms = compiled->milliseconds;
    kernel.info.shared_bytes = kernel.config.shared_bytes;
    for (const cuda::KernelUsage& usage : compiled->kernels) {
        kernel.info.registers = usage.registers;
        kernel.info.spill_bytes = usage.spill_store_bytes;
        kernel.info.shared_bytes += usage.shared_bytes;
    }
    kernel.cubin = std::move(compiled->cubin);
    store.publish(key.finish(), source,
                  {.metadata = encode(kernel.info, preference.refused), .payload = kernel.cubin},
                  log);
    return result;
}

// One thread per kernel: NVRTC compiles independent programs in parallel.
Result<std::vector<CompiledKernel>> compile_kernels(const passes::Mod& mod,
                                                    const CompileOptions& options,
                                                    const Target& target, cache::Store& store) {
    auto kinds = kinds_of(mod, options);
    if (!kinds) return kinds.error();
    std::vector<std::optional<Result<CompiledKernel>>> results(kinds->size());
    {
        std::vector<std::jthread> threads;
        for (std::size_t i = 0; i < kinds->size(); ++i)
            threads.emplace_back([&, i] {
                results[i] = guarded(
                    [&] { return compile_kernel(mod, options, (*kinds)[i], target, store); });
            });
    }
    std::vector<CompiledKernel> kernels;
    for (std::optional<Result<CompiledKernel>>& slot : results) {
        Result<CompiledKernel>& result = *slot; // filled: the threads have ended
        if (!result) return result.error();
        kernels.push_back(std::move(*result));
    }
    return kernels;
}

Result<Target> target_of(std::string_view arch) {
    const int number = cuda::arch_number(arch);
    if (number < 80)
        return Error{ErrorCode::invalid_option,
                     fmt::format("'{}' is not a supported architecture: give sm_80, sm_86, sm_89, "
                                 "sm_90a, sm_100 or sm_120",
                                 arch)};
    return Target{std::string(arch), number};
}

} // namespace

Result<Built> build_cuda(const passes::Mod& mod, const CompileOptions& options, int device,
                         cache::Store& store) {
    auto info = cuda::device_info(device);
    if (!info) return info.error();
    if (info->arch < 80)
        return unsupported(fmt::format("{} has compute capability {}.{}; 8.0 is the least",
                                       info->name, info->arch / 10, info->arch % 10));
    auto compiled = compile_kernels(mod, options, {cuda::arch_name(info->arch), info->arch}, store);
    if (!compiled) return compiled.error();
    Built built;
    std::vector<CudaKernel> kernels;
    for (CompiledKernel& one : *compiled) {
        built.from_cache = built.from_cache && one.cached;
        built.bytes += one.kernel.cubin.size();
        kernels.push_back(std::move(one.kernel));
    }
    // Kept by the kernel, when the caller's log may be gone.
    CompileOptions later = options;
    later.log = {};
    const auto compile_generic = [mod, later, info = *info]() -> Result<CudaKernel> {
        const auto folder = Context::instance().stores.get(later.cache);
        auto one =
            compile_kernel(mod, later, KernelKind::forward, {cuda::arch_name(info.arch), info.arch},
                           *folder, {.generic = true});
        if (!one) return one.error();
        return std::move(one->kernel);
    };
    auto loaded = runtime::load_cuda(std::move(kernels),
                                     {.device = device,
                                      .dtype = options.dtype,
                                      .head_dim = options.head_dim,
                                      .head_dim_v = options.head_dim_v,
                                      .compile_generic_forward = compile_generic,
                                      .report_out_of_range = options.report_out_of_range});
    if (!loaded) return loaded.error();
    built.executable = std::move(*loaded);
    return built;
}

Result<OfflineResult> build_cubins(const passes::Mod& mod, const CompileOptions& options,
                                   std::string_view arch, cache::Store& store) {
    auto target = target_of(arch);
    if (!target) return target.error();
    auto compiled = compile_kernels(mod, options, *target, store);
    if (!compiled) return compiled.error();
    OfflineResult result{.cached = true};
    for (CompiledKernel& one : *compiled) {
        result.cached = result.cached && one.cached;
        result.kernels.push_back({std::move(one.kernel.info), std::move(one.kernel.cubin)});
    }
    return result;
}

Result<std::string> explain_cuda(const passes::Mod& mod, const CompileOptions& options,
                                 std::string_view arch) {
    auto target = target_of(arch);
    if (!target) return target.error();
    // The backward's header holds everything that the forward's does.
    const KernelKind kind = options.backward ? KernelKind::backward_fused : KernelKind::forward;
    return mod_text(mod, options, configure(mod, options, kind, *target));
}

Result<std::string> explain_plan(const passes::Mod& mod, const CompileOptions& options,
                                 std::string_view arch) {
    auto target = target_of(arch);
    if (!target) return target.error();
    auto kinds = kinds_of(mod, options);
    if (!kinds) return kinds.error();
    std::string text = fmt::format("for {}, {}, head dims {} and {}:\n", arch, name(options.dtype),
                                   options.head_dim, options.head_dim_v);
    for (const KernelKind kind : *kinds) {
        const cuda::KernelConfig config = configure(mod, options, kind, *target);
        text += fmt::format("  {}: tile {} x {}, {} warps, {} stages, {} bytes shared; {}\n",
                            config.entry, config.query_tile, config.key_tile, config.warps,
                            config.stages, config.shared_bytes, config.reason);
    }
    return text;
}

} // namespace flexc::api
