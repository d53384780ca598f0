// The text form of a program: declarations, nodes numbered in the order of computation, roots.
// The same program prints the same text, whatever else is in its graph.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ir/program.h"

namespace flexc::ir {

struct NamedRoot {
    std::string name;
    NodeId node = kNoNode; // kNoNode is left out
};

std::string print(const Program& program);
std::string print(const Program& program, std::span<const NamedRoot> roots);

// The shortest text that reads back as the same value: "0.5", "-inf", "nan".
std::string print_real(double value);
std::string print_dims(const Program& program, const Buffer& buffer); // "[H, 32]"

} // namespace flexc::ir
