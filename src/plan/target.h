// What a plan is made for: an architecture by the name that compilers know.
#pragma once

#include <string>
#include <string_view>

#include "flexc/result.h"

namespace flexc::plan {

struct Target {
    std::string arch; // "sm_90a"
    int number = 0;   // 90: compute capability times ten
    // Code for it may use instructions that other architectures lack: "sm_90a", not "sm_90".
    bool has_own_instructions = false;
};
Result<Target> target_of(std::string_view arch);

// "sm_80", "sm_90a", ...: the target for a device of this compute capability times ten.
std::string arch_name(int number);
// 90 from "sm_90a"; 0 when it is no such name.
int arch_number(std::string_view name);

} // namespace flexc::plan
