// What ptxas -v says about each kernel.
#pragma once

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

// In the order of the log; lines that it does not know are skipped. What is serialised is told of
// the whole log.
std::vector<KernelUsage> parse_ptxas_log(std::string_view log);

} // namespace flexc::cuda
