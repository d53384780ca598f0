// What part of all (q, kv) pairs a program shows, for honest FLOP counts.
#pragma once

#include <optional>
#include <string>

#include "flexc/bench_case.h"

namespace flexc::cli {

struct VisibleFraction {
    std::optional<double> value; // absent when it could not be found
    std::string method;          // how, or why not
};

// Launches the same program on the call's tensors, compiled to count what is visible: what the mask
// shows and the score_mod does not make -inf. The call keeps that kernel, and its outputs are gone.
VisibleFraction visible_fraction(const BenchCase& bench, AttentionCall& call);

} // namespace flexc::cli
