// Whether an element reads outside a buffer, as a value that kernels can compute and report.
#pragma once

#include "ir/program.h"

namespace flexc::passes {

// True where a read that is taken is outside: reads on a branch not taken, after an `and` that is
// false already, or in the score of an element that the mask hides, do not count.
// A sink counts always.
ir::NodeId out_of_range(ir::Program& program, ir::NodeId score, ir::NodeId mask,
                        ir::NodeId sink = ir::kNoNode);

} // namespace flexc::passes
