// What all sub-commands share: how they are added, how they fail, how they print.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "flexc/command_line.h"
#include "flexc/result.h"

namespace flexc::cli {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

// Ends the program with a message on stderr; the library itself never throws.
class CommandError : public std::runtime_error {
  public:
    CommandError(int exit_code, const std::string& message)
        : std::runtime_error(message), exit_code_(exit_code) {}
    int exit_code() const { return exit_code_; }

  private:
    int exit_code_;
};

[[noreturn]] inline void fail(const std::string& message) {
    throw CommandError(kExitFailure, message);
}
[[noreturn]] inline void fail_usage(const std::string& message) {
    throw CommandError(kExitUsage, message);
}

template <typename T> T value_of(Result<T> result) {
    if (!result) {
        fail(result.error().message);
    }
    return std::move(*result);
}
inline void require(const Result<void>& result) {
    if (!result) {
        fail(result.error().message);
    }
}

// One line, so that the last line of the output is always the whole answer.
void print_json(const nlohmann::json& value);
void print_json_indented(const nlohmann::json& value);

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
