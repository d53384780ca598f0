// What one process shares: compiled kernels and cache folders. The only global state of flexc.
#pragma once

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
    support::Abandoned abandoned = std::make_shared<std::atomic<int>>(0);

    // Of a compile that begins now.
    support::Watch watch(const CompileOptions& options) const {
        return {options.limits, options.cancel, abandoned};
    }

    // Made on first use and never destroyed: kernels may be used by other exit handlers.
    static Context& instance();
};

} // namespace flexc::api
