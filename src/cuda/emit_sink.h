// A program's sink as functions of a row, for kernels whose rows end and those that come before a
// backward.
#pragma once

#include <string>

#include "passes/mod.h"
#include "passes/precision.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Whether this kernel computes the sink.
bool knows_sink(const passes::Mod& mod, const plan::KernelConfig& config);
// `most` as Layout's.
std::string emit_sink(const passes::Mod& mod, const plan::KernelConfig& config,
                      passes::Precision most);

} // namespace flexc::cuda
