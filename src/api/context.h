// What one process shares: compiled kernels and cache folders. The only global state of flexc.
#pragma once

#include "cache/modules.h"
#include "cache/store.h"
#include "runtime/state.h"

namespace flexc::api {

struct Context {
    cache::Modules<detail::KernelState> kernels;
    cache::Stores stores;

    // Made on first use and never destroyed: kernels may be used by other exit handlers.
    static Context& instance();
};

} // namespace flexc::api
