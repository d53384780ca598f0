// What a plan is made for: an architecture by the name that compilers know.
#pragma once

#include <string>
#include <string_view>

#include "flexc/result.h"

namespace flexc::plan {

struct Target {
    std::string arch; // as ptxas names it
    int number = 0;   // 90: compute capability times ten
    // Code for it may use instructions that other architectures lack: its name ends in "a".
    bool has_own_instructions = false;
};
Result<Target> target_of(std::string_view arch);

// The name of the target for a device of this compute capability times ten.
std::string arch_name(int number);
// That number from a name; 0 when it is none.
int arch_number(std::string_view name);

} // namespace flexc::plan
