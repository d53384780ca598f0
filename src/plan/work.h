// How much is computed for each element of a tile.
#pragma once

#include <span>

#include "ir/graph.h"
#include "passes/mod.h"
#include "passes/precision.h"

namespace flexc::plan {

// Instructions of a function of an element up to which kernels write it out for each element of a
// thread, 32 to 64 times. The library's mods have at most 85. ptxas takes more than linear time
// over what is written out, so that a longer function is compiled once, and called.
constexpr int kMostWrittenOut = 100;

// Instructions of what is found once for a key or a query, up to which kernels of modified scores
// write it out for each that a thread has of a tile. The library's mods have at most 172.
constexpr int kMostOfPosition = 180;

// Bytes that may spill where what is computed for an element takes far longer than they do, or the
// generic kernel is all that would follow.
constexpr int kSpillsOfLong = 128;

// Operations of a score mod with its derivatives, and of these with the mask, wherever they are
// computed, up to which a program is a usual one. The library's mods have at most 26 and 58.
constexpr int kMostScoreOperations = 32, kMostOperations = 96;

// Whether a program has more. Each form of a warp-specialized kernel of it takes long to compile,
// and where much spills, few of them stop to, so that the generic kernel follows the first.
bool is_large(const passes::Mod& mod);

// Estimates how many instructions the roots need for each element, before integers have been given
// widths.
int element_instructions(const passes::Mod& mod, std::span<const ir::NodeId> roots);

// Instructions that a score mod needs for each element of a forward: all of them, and those of the
// special function unit (SFU).
struct ScoreWork {
    int instructions = 0, special_functions = 0;
};
ScoreWork score_work(const passes::Mod& mod, passes::Precision most);

// Whether the roots need more than kMostWrittenOut instructions for each element.
bool is_long(const passes::Mod& mod, std::span<const ir::NodeId> roots);

// A program with fewer instructions for each element than this has every candidate of a kernel
// compiled.
constexpr int kFewInstructions = 40;

// Given the instructions for one element, returns how many a warp-specialized backward contains,
// which has a copy of them for each kind of tile.
int copied_instructions(const passes::Mod& mod, int instructions);

} // namespace flexc::plan
