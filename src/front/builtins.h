// The built-in functions: names, arguments, and the nodes they become.
#pragma once

#include <span>
#include <string_view>

#include "front/builder.h"

namespace flexc::front {

struct Builtin {
    std::string_view name;
    std::string_view parameters; // "x lo hi": their names, also as keywords
    std::size_t min_arguments;
    std::size_t max_arguments;
    ir::NodeId (*lower)(Builder& build, std::span<Operand> arguments, dsl::Span span);
};

inline constexpr std::size_t kAnyNumber = 64;

std::span<const Builtin> builtins();
const Builtin* find_builtin(std::string_view name);
// Returns what to write instead of a PyTorch function that is not a builtin; empty if there is no
// advice.
std::string_view builtin_advice(std::string_view name);

} // namespace flexc::front
