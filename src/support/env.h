// The environment, read in one place; env.def lists every variable of ours.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flexc/options.h"

namespace flexc::support {

enum class Variable {
#define FLEXC_VARIABLE(identifier, name, form, meaning) identifier,
#include "support/env.def"
#undef FLEXC_VARIABLE
};

// A path is checked by whoever opens it.
enum class VariableForm { level, path, count, flag };

struct VariableInfo {
    Variable variable;
    const char* name;
    VariableForm form;
    std::string_view meaning;
};

std::span<const VariableInfo> variables();
const VariableInfo& info(Variable variable);

// Unset and empty are the same: nothing. Always nothing in a set-uid process, whose environment
// belongs to somebody else.
std::optional<std::string> environment(Variable variable);

// The parsed value; nothing if it is unset or malformed.
std::optional<LogLevel> environment_level(Variable variable);
std::optional<int> environment_count(Variable variable); // from 1
bool environment_flag(Variable variable);                // 1, not 0 or unset

// Describes variables with malformed values, which have no effect.
std::vector<std::string> environment_problems();

// A variable that others own, such as HOME or CUDA_PATH.
std::optional<std::string> foreign_environment(const char* name);

} // namespace flexc::support
