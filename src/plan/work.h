// Estimates how much is computed for each element of a tile.
#pragma once

#include <span>

#include "ir/graph.h"
#include "passes/mod.h"
#include "passes/precision.h"

namespace flexc::plan {

// Up to this many instructions, kernels inline a function of an element for each element of a
// thread, 32 to 64 times. ptxas takes more than linear time for inlined code, so a longer function
// is compiled once, and called. The library's mods stay below this and the limits that follow.
constexpr int kMostWrittenOut = 100;

// Up to this many instructions, kernels with score mods inline what is computed once for a key or a
// query, for each that a thread has in a tile. Where a mask alone needs more for a query, the warps
// beside the MMAs of Hopper's backward save registers.
constexpr int kMostOfPosition = 180;

// Up to this many instructions, what is computed once for a launch, a head, a key or a query reads
// all its values wherever one of them is used: a mask needs others than scores do.
constexpr int kMostWithUnusedReads = 40;

// Bytes that may spill if the computation of an element takes far longer than these, or if only the
// generic kernel would follow.
constexpr int kSpillsOfLong = 128;

// A program is large if its score mod and derivatives together have more than kMostScoreOperations
// operations, or these and its mask more than kMostOperations.
constexpr int kMostScoreOperations = 32, kMostOperations = 96;

// Whether a program is large. Each form of its warp-specialized kernels takes long to compile, and
// if one spills, other forms rarely help, so that the generic kernel follows the first.
bool is_large(const passes::Mod& mod);
// Whether it is large without its derivatives: what forwards compute.
bool has_large_score(const passes::Mod& mod);

// Estimates how many instructions it takes to compute the roots for one element, before integers
// have been given widths. known: nodes whose values are there already.
int element_instructions(const passes::Mod& mod, std::span<const ir::NodeId> roots,
                         std::span<const ir::NodeId> known = {});

// Returns whether elements compute the derivative from their positions, not from their scores, and
// so long that doing it twice costs more than what else it takes to multiply it into P. Never where
// a buffer has a gradient, which needs what is not multiplied by it.
bool has_costly_derivative(const passes::Mod& mod);

// Estimates how many instructions the roots need once for each query, with integers in their
// widths.
int row_instructions(const passes::Mod& mod, std::span<const ir::NodeId> roots);

// Whether an element computes with integers of 64 bits on the way to `root`.
bool computes_wide_integers(const passes::Mod& mod, ir::NodeId root);

// Whether computing the roots of the graph takes square roots for each element.
bool takes_roots(const passes::Mod& mod, std::span<const ir::NodeId> roots);

// Estimates how many of the element_instructions() are of reads.
int read_instructions(const passes::Mod& mod, std::span<const ir::NodeId> roots);

// Instructions that a score mod needs for each element of a forward: all of them, and those that
// the special function unit (SFU) executes.
struct ScoreWork {
    int instructions = 0, special_functions = 0;
};
ScoreWork score_work(const passes::Mod& mod, passes::Precision most);

// Whether the roots need more than kMostWrittenOut instructions for each element.
bool is_long(const passes::Mod& mod, std::span<const ir::NodeId> roots);

// Up to this many instructions for each element, a program has every candidate of a kernel compiled
// if need be; beyond, compiles take so long that some are left out.
constexpr int kFewInstructions = 40;

// Given the instructions for one element, returns how many a warp-specialized backward contains,
// which has a copy of them for each kind of tile.
int copied_instructions(const passes::Mod& mod, int instructions);

} // namespace flexc::plan
