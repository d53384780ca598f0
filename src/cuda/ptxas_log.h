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
    int shared_bytes = 0; // static only
};

// In the order of the log; lines that it does not know are skipped.
std::vector<KernelUsage> parse_ptxas_log(std::string_view log);

} // namespace flexc::cuda
