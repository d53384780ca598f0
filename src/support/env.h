// The environment, read in one place; env.def lists every variable of ours.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace flexc::support {

enum class Variable {
#define FLEXC_VARIABLE(identifier, name, meaning) identifier,
#include "support/env.def"
#undef FLEXC_VARIABLE
};

struct VariableInfo {
    Variable variable;
    const char* name;
    std::string_view meaning;
};

std::span<const VariableInfo> variables();
const VariableInfo& info(Variable variable);

// Unset and empty are the same: nothing. Always nothing in a set-uid process, whose environment
// belongs to somebody else.
std::optional<std::string> environment(Variable variable);

// A variable that others own, such as HOME or CUDA_PATH.
std::optional<std::string> foreign_environment(const char* name);

} // namespace flexc::support
