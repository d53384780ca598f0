#include "support/env.h"

#include <array>
#include <charconv>
#include <cstdlib>

#include "support/text.h"

namespace flexc::support {

namespace {
constexpr std::array kVariables = {
#define FLEXC_VARIABLE(identifier, name, form, meaning)                                            \
    VariableInfo{Variable::identifier, name, VariableForm::form, meaning},
#include "support/env.def"
#undef FLEXC_VARIABLE
};

std::optional<LogLevel> parse_level(std::string_view text) {
    if (text == "debug") return LogLevel::debug;
    if (text == "info") return LogLevel::info;
    if (text == "warn" || text == "warning") return LogLevel::warning;
    if (text == "error") return LogLevel::error;
    return std::nullopt;
}

std::optional<int> parse_count(std::string_view text) {
    int count = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, problem] = std::from_chars(text.data(), end, count);
    if (problem != std::errc{} || stop != end || count < 1) return std::nullopt;
    return count;
}

// Describes the valid values of this form if `text` is not one; else empty.
std::string_view expected(VariableForm form, std::string_view text) {
    switch (form) {
    case VariableForm::level: return parse_level(text) ? "" : "debug, info, warn or error";
    case VariableForm::count: return parse_count(text) ? "" : "a whole number from 1";
    case VariableForm::flag: return text == "0" || text == "1" ? "" : "0 or 1";
    case VariableForm::path: return "";
    }
    return "";
}

} // namespace

std::span<const VariableInfo> variables() { return kVariables; }

const VariableInfo& info(Variable variable) {
    return kVariables[static_cast<std::size_t>(variable)];
}

std::optional<std::string> environment(Variable variable) {
    return foreign_environment(info(variable).name);
}

std::optional<LogLevel> environment_level(Variable variable) {
    const auto text = environment(variable);
    return text ? parse_level(*text) : std::nullopt;
}

std::optional<int> environment_count(Variable variable) {
    const auto text = environment(variable);
    return text ? parse_count(*text) : std::nullopt;
}

bool environment_flag(Variable variable) { return environment(variable) == "1"; }

std::vector<std::string> environment_problems() {
    std::vector<std::string> problems;
    for (const VariableInfo& variable : variables()) {
        const auto text = environment(variable.variable);
        if (!text) continue;
        const std::string_view form = expected(variable.form, *text);
        if (!form.empty())
            problems.push_back(formatted("{}='{}': expected {}", variable.name, *text, form));
    }
    return problems;
}

std::optional<std::string> foreign_environment(const char* name) {
    const char* value = ::secure_getenv(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return std::string(value);
}

} // namespace flexc::support
