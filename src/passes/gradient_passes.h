// Decides how gradients of captured reads are summed, and by which kernels of a backward.
//
// The warps that sum whole tiles have one kind of sums, so that of a program's gradients some may
// be left that one kernel could only add element by element in memory, where elements that share an
// address wait for each other. Further kernels sum those: each is a backward of the same program in
// which only some reads are learned, without dq, dk and dv.
#pragma once

#include <vector>

#include "passes/mod.h"

namespace flexc::passes {

struct SumOptions {
    bool divides_by_derivative = false; // see passes/gradient_factor.h
    bool rows_are_whole = true;         // see passes/row_gradient.h
};

// Fills how the mod's gradients are summed, by one kernel, and the mods of several that share them.
void find_gradient_sums(Mod& mod, const SumOptions& options);

} // namespace flexc::passes
