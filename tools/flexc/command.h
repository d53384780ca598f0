// What all sub-commands share: how they are added, how they fail, how they print.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "flexc/command_line.h"
#include "flexc/compile.h"
#include "flexc/result.h"

namespace flexc::cli {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

// Ends the program with a message on stderr; the library itself never throws.
class CommandError : public std::runtime_error {
  public:
    // code: what programs tell errors apart by, the name of an ErrorCode or "usage".
    CommandError(int exit_code, std::string_view code, const std::string& message)
        : std::runtime_error(message), exit_code_(exit_code), code_(code) {}
    int exit_code() const { return exit_code_; }
    const std::string& code() const { return code_; }

  private:
    int exit_code_;
    std::string code_;
};

[[noreturn]] inline void fail(const Error& error) {
    throw CommandError(kExitFailure, name(error.code), error.message);
}
[[noreturn]] inline void fail(const std::string& message) {
    fail({ErrorCode::invalid_option, message});
}
[[noreturn]] inline void fail_usage(const std::string& message) {
    throw CommandError(kExitUsage, "usage", message);
}

template <typename T> T value_of(Result<T> result) {
    if (!result) {
        fail(result.error());
    }
    return std::move(*result);
}
inline void require(const Result<void>& result) {
    if (!result) {
        fail(result.error());
    }
}

// One line, so that the last line of the output is always the whole answer.
void print_json(const nlohmann::json& value);
void print_json_indented(const nlohmann::json& value);
// On stderr; as JSON {"error": {"code", "message", "exit_code"}}.
void print_error(const CommandError& error, bool as_json);

// The nearest of `candidates`, or "" when none is near.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

void add_run(CommandLine program);
void add_check(CommandLine program);
void add_explain(CommandLine program);
void add_compile(CommandLine program);
void add_bench(CommandLine program);
void add_tune(CommandLine program);
void add_mask(CommandLine program);
void add_list(CommandLine program);
void add_show(CommandLine program);
void add_cache(CommandLine program);
void add_doctor(CommandLine program);

} // namespace flexc::cli
