// Whether an element reads outside a buffer, as a value that kernels can compute and report.
#pragma once

#include "ir/program.h"

namespace flexc::passes {

// Returns a bool that is true where a read that takes effect is outside its buffer. Reads on a
// branch not taken, after an `and` whose left side is false, or in the score of a hidden element do
// not count. The sink always counts.
ir::NodeId out_of_range(ir::Program& program, ir::NodeId score, ir::NodeId mask,
                        ir::NodeId sink = ir::kNoNode);

} // namespace flexc::passes
