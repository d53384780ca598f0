// What part of all (q, kv) pairs the mask lets through, for honest FLOP counts.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "flexc/attention_call.h"
#include "flexc/mod_option.h"

namespace flexc::cli {

struct VisibleFraction {
    std::optional<double> value; // absent when it could not be found
    std::string method;          // how, or why not
};

// The program with its score_mod out of the way, so that every visible score is 0.
std::string without_score_mod(const std::string& text);

// Runs attention with head dimension 1 over zero scores: a row's log-sum-exp is then the logarithm
// of how many elements it sees. add_buffers gives the call its buffers.
VisibleFraction visible_fraction(const ModText& mod, const Signature& signature,
                                 const ProblemShape& shape, Device device,
                                 const std::function<void(AttentionCall&)>& add_buffers);

} // namespace flexc::cli
