// How precisely GPU kernels compute a program's values.
#pragma once

#include <cstdint>
#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

enum class Precision : std::uint8_t {
    exact, // as f32 can
    fast,  // a few roundings off
    // The same, but roots of subnormal numbers are 0.
    flushed,
    rough, // tanh and what is made of it: off by 2^-11, as the bf16 weights that follow from it
};

// Returns the precision of every node: at most `most`, and no rougher than its users tolerate.
// Steps (floor, comparison, int) may jump because of a rounding error; logarithms, divisors and
// powers magnify small absolute errors. Values that are not computed for each element are neither
// rough nor flushed.
std::vector<Precision> precisions(const Mod& mod, Precision most);

} // namespace flexc::passes
