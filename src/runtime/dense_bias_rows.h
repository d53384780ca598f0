// Checks whether the strides of a call's dense biases allow kernels to copy their tiles row by row.
#pragma once

#include <optional>
#include <vector>

#include "cuda/tensor_maps.h"
#include "plan/dense_biases.h"
#include "runtime/executable.h"

namespace flexc::runtime {

// Describes the buffer as a matrix of rows that do not overlap. Empty if its strides rule that out.
std::optional<cuda::BiasLayout> rows_of(const plan::CopiedBias& bias, const Call& call);

// Whether every row of every tile starts and ends at a multiple of 16 bytes, and its keys are
// contiguous.
bool have_aligned_rows(const std::vector<plan::CopiedBias>& biases, const Call& call);

} // namespace flexc::runtime
