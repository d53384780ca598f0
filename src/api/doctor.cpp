#include <algorithm>

#include "cache/pack.h"
#include "cpu/executable.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "flexc/compile.h"
#include "support/env.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

// The identity lists every processor feature, for cache keys; people want the names.
std::string summary(std::string_view identity) {
    std::string text;
    while (!identity.empty()) {
        const std::size_t end = std::min(identity.find_first_of(" ,"), identity.size());
        const std::string_view word = identity.substr(0, end);
        identity.remove_prefix(std::min(end + 1, identity.size()));
        if (word.empty() || word.front() == '+' || word.front() == '-') continue;
        if (!text.empty()) text += ' ';
        text += word;
    }
    return text;
}

std::vector<Finding> search() {
    std::vector<Finding> findings;
    if (const auto driver = cuda::driver_info()) {
        findings.push_back({.what = "CUDA driver",
                            .found = true,
                            .detail = formatted("{}.{}, {}", driver->version / 1000,
                                                driver->version % 1000 / 10, driver->path)});
        for (int i = 0; i < driver->device_count; ++i) {
            const std::string what = formatted("GPU {}", i);
            if (const auto info = cuda::device_info(i))
                findings.push_back(
                    {.what = what,
                     .found = info->arch >= 80,
                     .detail =
                         formatted("{}, compute capability {}.{}, {} GiB", info->name,
                                   info->arch / 10, info->arch % 10, info->memory_bytes >> 30),
                     .remedy = info->arch >= 80 ? "" : "flexc needs compute capability 8.0"});
            else
                findings.push_back({.what = what, .detail = info.error().message});
        }
        if (driver->device_count == 0)
            findings.push_back({.what = "GPU", .detail = "the driver sees none"});
    } else {
        findings.push_back({.what = "CUDA driver",
                            .detail = driver.error().message,
                            .remedy = "install the NVIDIA driver; without it kernels run on the "
                                      "CPU, and flexc compile still makes cubins"});
    }
    if (const auto nvrtc = cuda::nvrtc_info())
        findings.push_back(
            {.what = "NVRTC",
             .found = true,
             .detail = formatted("{}.{}, {}", nvrtc->major, nvrtc->minor, nvrtc->path)});
    else
        findings.push_back({.what = "NVRTC",
                            .detail = nvrtc.error().message,
                            .remedy = "pip install nvidia-cuda-nvrtc, or install the CUDA toolkit, "
                                      "or set FLEXC_NVRTC to libnvrtc.so"});
    if (const auto identity = cpu::backend_identity())
        findings.push_back({.what = "CPU backend", .found = true, .detail = summary(*identity)});
    else
        findings.push_back({.what = "CPU backend",
                            .detail = identity.error().message,
                            .remedy = "build with FLEXC_CPU=ON and keep libflexc_cpu.so beside the "
                                      "program, or set FLEXC_CPU_BACKEND to it"});
    for (const std::string& problem : support::environment_problems())
        findings.push_back({.what = "environment",
                            .detail = problem,
                            .remedy = "it has no effect now: correct or unset it"});
    if (const std::string folder = cache::pack_folder({}); !folder.empty()) {
        const cache::PackState pack = cache::check_pack(folder);
        findings.push_back(
            {.what = "pack",
             .found = pack.problem.empty(),
             .detail = pack.problem.empty() ? formatted("{} kernels in {}", pack.kernels, folder)
                                            : formatted("{}: {}", folder, pack.problem),
             .remedy = pack.problem.empty()
                           ? ""
                           : "set FLEXC_PACK to a folder that flexc compile -o wrote "
                             "with this version of flexc, or unset it"});
    }
    return findings;
}

} // namespace

std::vector<Finding> doctor() { return guarded_or(std::vector<Finding>(), search); }

} // namespace flexc
