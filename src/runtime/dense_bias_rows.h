// Dense biases whose tiles kernels copy row by row: whether a call's rows allow that.
#pragma once

#include <optional>
#include <vector>

#include "cuda/tensor_maps.h"
#include "plan/dense_biases.h"
#include "runtime/executable.h"

namespace flexc::runtime {

// Everything that the buffer holds as rows side by side, none of whose keys are in two of them.
// Empty where strides rule that out.
std::optional<cuda::BiasLayout> rows_of(const plan::CopiedBias& bias, const Call& call);

// Whether every row of every tile starts and ends at 16 aligned bytes, without gaps between keys.
bool have_aligned_rows(const std::vector<plan::CopiedBias>& biases, const Call& call);

} // namespace flexc::runtime
