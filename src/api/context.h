// State that a process shares: compiled kernels and cache folders. The only global state of flexc.
#pragma once

#include <memory>

#include "cache/failures.h"
#include "cache/modules.h"
#include "cache/store.h"
#include "runtime/state.h"
#include "support/watch.h"

namespace flexc::api {

struct Context {
    cache::Modules<detail::KernelState> kernels;
    cache::Failures failures;
    cache::Stores stores;
    std::shared_ptr<support::Runs> runs = std::make_shared<support::Runs>();

    // The watch of a compile that starts now.
    support::Watch watch(const CompileOptions& options) const {
        return {options.limits, options.cancel, runs};
    }

    // Made on first use and never destroyed: kernels may be used by other exit handlers.
    static Context& instance();
};

} // namespace flexc::api
