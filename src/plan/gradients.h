// Steps and regions that the backward passes of all families share: statistics of rows, and
// gradients of captured buffers that are summed exactly or returned in a type other than f32.
#pragma once

#include "plan/pass.h"

namespace flexc::plan {

class TargetProgram;

// The block of a memory-bound kernel that visits each row (or element) once.
inline constexpr BlockShape kStreamingBlock{.query_tile = 128, .key_tile = 128, .warps = 4};
// Adds the region of row statistics, and the arguments by which kernels find it.
void add_row_statistics(const TargetProgram& program, PassPlan& pass);
// Added to a delta kernel's reason if the program has a sink.
inline constexpr std::string_view kBesideSink = ", weights beside a sink and its gradient";
// The launch that finds the reference to which the weights of each row are relative (see
// templates/sm80/row_references.cuh). Its function is in the module of `kernel`.
Launch find_references(const TargetProgram& program, std::size_t kernel);
// Number of tiles of `tile` queries in all heads: the blocks of a kernel with one tile a block.
Extent query_tiles(const TargetProgram& program, int tile);
// Number of tiles of keys in all heads. key_tiles_of_each(): for launches by heads, in which each
// request of ragged keys has as many tiles as the longest one.
Extent key_tiles(const TargetProgram& program, int tile);
Extent key_tiles_of_each(int tile);
// Number of queries in all heads, with each head (or each request in it) padded to a multiple of
// kReferenceRows, times `factor` and divided by `per`.
Extent padded_query_rows(const TargetProgram& program, int factor, int per = 1);

// Adds regions::exact_sums, and the PassPlan::exact_gradients by which the runtime finds them.
void add_exact_sums(const TargetProgram& program, PassPlan& pass);
void add_fill_of_exact_sums(PassPlan& pass);
// Adds the last kernels and steps of a backward: those that round sums and gradients.
void add_rounding(const TargetProgram& program, PassPlan& pass);

} // namespace flexc::plan
