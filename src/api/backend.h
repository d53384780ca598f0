// From a Mod to code that runs on a device, by way of the disk cache. One function per backend.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

#include "api/frontend.h"
#include "cache/modules.h"
#include "cache/store.h"
#include "runtime/executable.h"
#include "runtime/state.h"
#include "support/watch.h"

namespace flexc::api {

struct Built {
    std::shared_ptr<const runtime::Executable> executable;
    bool from_cache = true; // no backend compiler ran
    std::uint64_t bytes = 0;
};

Result<Built> build_cpu(const passes::Mod& mod, const CompileOptions& options, cache::Store& store,
                        const support::Watch& watch);
Result<Built> build_cuda(const passes::Mod& mod, const CompileOptions& options, int device_index,
                         cache::Store& store, const support::Watch& watch);
Result<OfflineResult> build_cubins(const passes::Mod& mod, const CompileOptions& options,
                                   std::string_view arch, OfflineCalls calls, cache::Store& store,
                                   const support::Watch& watch);

// Makes a kernel of a parsed program, with the passes and the backend of the options' device.
// start: when the compile began.
Result<cache::Modules<detail::KernelState>::Made>
make_kernel(Front front, const CompileOptions& options, const support::Watch& watch,
            std::chrono::steady_clock::time_point start);

// Return the errors that can be found without running a backend compiler. An empty `arch` means
// that of the device.
Result<void> check_cpu(const CompileOptions& options);
Result<void> check_cuda(const passes::Mod& mod, const CompileOptions& options,
                        std::string_view arch, cache::Store& store);

// Text forms for explain. Of dependences, gradients are summed as specialized kernels do it.
std::string explain_dependence(const passes::Mod& mod, const CompileOptions& options);
Result<std::string> explain_cuda(const passes::Mod& mod, const CompileOptions& options,
                                 std::string_view arch);
Result<std::string> explain_plan(const passes::Mod& mod, const CompileOptions& options,
                                 std::string_view arch);

} // namespace flexc::api
