// Small kernels for the CPU, compiled anew by each test that asks.
#pragma once

#include "flexc/flexc.h"

namespace flexc::test {

inline CompileOptions cpu_options() {
    CompileOptions options;
    options.dtype = DType::f32;
    options.head_dim = 8;
    options.device = Device::cpu();
    options.cache.disk = false;
    return options;
}

// Whether this build and machine have the library that compiles for the CPU.
inline bool has_cpu() {
    const auto kernel = compile("score", cpu_options());
    return kernel || kernel.error().code != ErrorCode::library_missing;
}

} // namespace flexc::test
