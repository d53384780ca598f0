// The sink as attention over one more key, whose score is the sink (the same for a whole row) and
// whose value is zero. lse does not include it.
//
// With Q the weights without a sink and r = 1 / (1 + exp(sink - lse)), the weights are P = r Q and
// the sink's is 1 - r. So o = P V, and with delta = rowsum(d_out * o)
//     d score = P (d_out V' - delta) + d_lse Q,    d sink = -(1 - r) delta.
#pragma once

#include "passes/mod.h"

namespace flexc::passes {

// The program of that key alone, with the same arguments as `mod`: everything is visible, the score
// is the sink, and the gradients are the sink's. Reads outside buffers are not reported.
Mod sink_mod(const Mod& mod);

} // namespace flexc::passes
