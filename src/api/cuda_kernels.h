// The CUDA kernels of a program: which there are, in which configuration, and their machine code
// from the cache or the compiler.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/kernel_entry.h"
#include "cache/store.h"
#include "cuda/config.h"
#include "flexc/options.h"
#include "flexc/result.h"
#include "passes/mod.h"

namespace flexc::api {

struct Target {
    std::string arch; // "sm_90a"
    int number = 0;   // 90
};
Result<Target> target_of(std::string_view arch);

// The forward, and with options.backward the kernels of the backward in the order of their launch.
Result<std::vector<cuda::KernelKind>> kinds_of(const passes::Mod& mod,
                                               const CompileOptions& options, const Target& target);

// What a choice of configuration starts from.
struct Preference {
    bool generic = false;        // only kernels that take tensors of any layout
    bool copies_matrices = true; // whose rows are aligned
    int refused = 0;             // configurations that compiled badly before
    std::optional<cuda::ForwardSchedule> schedule = {}; // asked for, or kept in the cache
};
cuda::KernelRequest request_for(const passes::Mod& mod, const CompileOptions& options,
                                cuda::KernelKind kind, const Target& target,
                                const Preference& preference);
cuda::KernelConfig configure(const passes::Mod& mod, const CompileOptions& options,
                             cuda::KernelKind kind, const Target& target,
                             Preference preference = {});
std::string mod_text(const passes::Mod& mod, const CompileOptions& options,
                     const cuda::KernelConfig& config);

Result<CompiledKernel> compile_kernel(const passes::Mod& mod, const CompileOptions& options,
                                      cuda::KernelKind kind, const Target& target,
                                      cache::Store& store, Preference preference = {});
// All that kinds_of names, in parallel.
Result<std::vector<CompiledKernel>> compile_kernels(const passes::Mod& mod,
                                                    const CompileOptions& options,
                                                    const Target& target, cache::Store& store);

} // namespace flexc::api
