// What ptxas -v says about each kernel.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flexc::cuda {

struct KernelUsage {
    std::string name; // of the function
    int registers = 0;
    int stack_bytes = 0;
    int spill_store_bytes = 0;
    int spill_load_bytes = 0;
    int shared_bytes = 0;    // static only
    bool serialised = false; // wgmma one after another, or setmaxnreg ignored: half the speed
};

// Returns an entry for each kernel, in the order of the log; unknown lines are skipped. A warning
// about serialised wgmma anywhere in the log sets `serialised` for all kernels.
std::vector<KernelUsage> parse_ptxas_log(std::string_view log);

// Returns the entry of the kernel of this name. If there is none, nothing tells the kernels apart:
// then the most of each number that any of them has.
KernelUsage usage_of(std::span<const KernelUsage> kernels, std::string_view name);

} // namespace flexc::cuda
