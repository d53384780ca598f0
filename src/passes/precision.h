// How exactly GPU kernels compute a program's values.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

enum class Precision : std::uint8_t {
    exact, // as f32 can
    fast,  // a few roundings off
    rough, // tanh and what is made of it: off by 2^-11, as the bf16 weights that follow from it
};

// Of every node, at most `most`, and no rougher than its users bear: steps (floor, comparison, int)
// turn a rounding into another number; logarithms, divisors and powers turn a small absolute error
// into a large one. What is not computed for each element is not rough.
std::vector<Precision> precisions(const Mod& mod, Precision most);

} // namespace flexc::passes
