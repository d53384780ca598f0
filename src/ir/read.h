// Reads what print writes. For tests, and to keep the text form honest: it says everything.
#pragma once

#include <string_view>
#include <vector>

#include "flexc/result.h"
#include "ir/print.h"

namespace flexc::ir {

struct ReadProgram {
    Program program; // score and mask are set when roots have these names
    std::vector<NamedRoot> roots;
};

// Lines that start with # are comments. Errors name the line.
Result<ReadProgram> read(std::string_view text);

} // namespace flexc::ir
