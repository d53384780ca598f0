// NVIDIA's run-time compiler, opened when first needed. Knows text and bytes only.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/fill.h"
#include "cuda/ptxas_log.h"
#include "flexc/result.h"
#include "support/watch.h"

namespace flexc::cuda {

struct NvrtcInfo {
    int major = 0, minor = 0;
    std::string path;
    std::vector<int> architectures; // 75, 80, ...; empty when the library does not tell
};

// Searches once in the life of the process; the error lists every path that was tried. Opening the
// library takes longer than finding a kernel in the cache: ask only before a compile.
Result<NvrtcInfo> nvrtc_info();

// Fails if NVRTC is missing, or reports that it does not know the architecture.
Result<void> check_nvrtc(std::string_view arch);

struct NvrtcOutput {
    std::string cubin;
    std::string log;
    std::vector<KernelUsage> kernels;
    double milliseconds = 0;
};

// Most bytes of all arguments of a kernel, by the version of the compiler or driver, as the driver
// reports it: 12040 is 12.4.
constexpr std::size_t most_argument_bytes(int version) { return version < 12010 ? 4096 : 32764; }

// Options in the order in which they are passed, for compile and for cache keys.
std::vector<std::string> nvrtc_options(std::string_view arch);

// Whether an error of compile_cubin() is that the assembler found no registers for a kernel,
// spilled or not. Another kernel of the program may compile.
bool lacks_registers(const Error& error);

// arch as ptxas names it. May be called from many threads at once. The error carries the
// compiler's log.
Result<NvrtcOutput> compile_cubin(const Translation& translation, std::string_view arch,
                                  const support::Watch& watch = {});

} // namespace flexc::cuda
