// Rewrites a program for a part of a problem: some heads, some rows of a buffer, or keys without
// the sink. It computes for that part what the whole program would.
#pragma once

#include "flexc/options.h"
#include "flexc/result.h"
#include "ir/program.h"

namespace flexc::passes {

// For options.part_of_heads: what the program gets for "H" and for "H_KV"; the runtime binds them.
// Names with a dot cannot occur in the language.
struct HeadNames {
    const char *first, *whole; // params: where h begins, and what H reads
    const char* extent;        // the size of dims of buffers
};
inline constexpr HeadNames kHeadNames = {"H.first", "H.whole", "H.extent"};
inline constexpr HeadNames kKvHeadNames = {"H_KV.first", "H_KV.whole", "H_KV.extent"};

// Rewrites the program for options.one_sequence, sink_use, sharded and part_of_heads.
Result<void> make_part(ir::Program& program, const CompileOptions& options);

} // namespace flexc::passes
