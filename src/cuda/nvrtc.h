// NVIDIA's run-time compiler, opened when first needed. Knows text and bytes only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuda/fill.h"
#include "cuda/ptxas_log.h"
#include "flexc/result.h"

namespace flexc::cuda {

struct NvrtcInfo {
    int major = 0, minor = 0;
    std::string path;
    std::string identity;           // version, and size of the file: for cache keys
    std::vector<int> architectures; // 75, 80, ...; empty when the library does not tell
};

// Searches once in the life of the process; the error lists every path that was tried.
Result<NvrtcInfo> nvrtc_info();

struct NvrtcOutput {
    std::string cubin;
    std::string log;
    std::vector<KernelUsage> kernels;
    double milliseconds = 0;
};

// Options in the order in which they are passed, for compile and for cache keys.
std::vector<std::string> nvrtc_options(std::string_view arch);

// arch as ptxas names it: "sm_90a". May be called from many threads at once. The error carries the
// compiler's log.
Result<NvrtcOutput> compile_cubin(const Translation& translation, std::string_view arch);

// "sm_80", "sm_90a", ...: the target for a device of this compute capability times ten.
std::string arch_name(int arch);
// 90 from "sm_90a"; 0 when it is no such name.
int arch_number(std::string_view name);

} // namespace flexc::cuda
