// The target of a plan: an architecture, by the name that compilers use.
#pragma once

#include <string>
#include <string_view>

#include "flexc/result.h"

namespace flexc::plan {

struct Target {
    std::string arch; // as ptxas names it
    int number = 0;   // 90: compute capability times ten
    // Whether its code may use instructions that other architectures lack: its name ends in "a".
    bool has_own_instructions = false;
};
Result<Target> target_of(std::string_view arch);

// The name of the target for a device of this compute capability times ten.
std::string arch_name(int number);
// Returns the compute capability times ten of an architecture's name; 0 if it is not such a name.
int arch_number(std::string_view name);

} // namespace flexc::plan
