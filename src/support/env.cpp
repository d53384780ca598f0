#include "support/env.h"

#include <array>
#include <cstdlib>

namespace flexc::support {

namespace {
constexpr std::array kVariables = {
#define FLEXC_VARIABLE(identifier, name, meaning) VariableInfo{Variable::identifier, name, meaning},
#include "support/env.def"
#undef FLEXC_VARIABLE
};
} // namespace

std::span<const VariableInfo> variables() { return kVariables; }

const VariableInfo& info(Variable variable) {
    return kVariables[static_cast<std::size_t>(variable)];
}

std::optional<std::string> environment(Variable variable) {
    return foreign_environment(info(variable).name);
}

std::optional<std::string> foreign_environment(const char* name) {
    const char* value = ::secure_getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
}

} // namespace flexc::support
