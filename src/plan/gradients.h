// The parts that backward passes of all families have: facts of rows, gradients of captured buffers
// that are summed exactly or returned in another type than f32.
#pragma once

#include "plan/pass.h"

namespace flexc::plan {

class Program;

// A kernel that passes over rows, or elements, once at the speed of memory.
KernelConfig streaming_kernel(std::string_view family, KernelKind kind, std::string_view path,
                              std::string_view entry, std::string_view reason);
// The region of row facts, and what kernels are told of it.
void add_row_facts(const Program& program, PassPlan& pass);
// Why a delta kernel reads the program.
inline constexpr std::string_view kBesideSink = ", weights beside a sink and its gradient";
// Finds what the weights of each row are relative to; in the module of the kernel that computes the
// scores.
Launch find_references(const Program& program, std::size_t kernel);
// Tiles of so many queries, of all heads: blocks of kernels that have one each.
Extent query_tiles(const Program& program, int tile);
// The same of keys; and where ragged keys have launches by heads, as many for each request as for
// the longest.
Extent key_tiles(const Program& program, int tile);
Extent key_tiles_of_each(int tile);
// Queries of all heads, each of which, or each request in it, is lengthened to whole tiles of
// kReferenceRows: `factor` for each `per` of them.
Extent padded_query_rows(const Program& program, int factor, int per = 1);

// Region::exact_sums, and what the runtime must know of them.
void add_exact_sums(const Program& program, PassPlan& pass);
void add_fill_of_exact_sums(PassPlan& pass);
// The kernels and steps that come last.
void add_rounding(const Program& program, PassPlan& pass);

} // namespace flexc::plan
