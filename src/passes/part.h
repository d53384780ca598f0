// A program for a part of a problem: some heads, some rows of a buffer, keys without the sink. What
// it says of the part is what the whole program says of it.
#pragma once

#include "flexc/options.h"
#include "flexc/result.h"
#include "ir/program.h"

namespace flexc::passes {

// By options.sink_use, sharded and part_of_heads.
Result<void> make_part(ir::Program& program, const CompileOptions& options);

} // namespace flexc::passes
