// Whether a tensor file holds what a program and a call need: every problem, each naming a tensor.
#pragma once

#include <string>
#include <vector>

#include "flexc/attention_call.h"
#include "flexc/safetensors.h"

namespace flexc::cli {

// What k and v may have beside the type of q: of a cache, with scales.
bool is_cache_type(DType dtype);

// From q, k and v; throws CommandError with every problem found.
ProblemShape problem_shape(const TensorFile& file);

// Throws CommandError when a tensor is missing, is not wanted, or has the wrong type or shape.
void check_inputs(const TensorFile& file, const Signature& signature, const ProblemShape& shape,
                  bool backward);

} // namespace flexc::cli
