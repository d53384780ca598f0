// A program's sink as functions of a row, for kernels that finish rows and for those that run
// before a backward.
#pragma once

#include <string>

#include "passes/mod.h"
#include "passes/precision.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Whether this kernel computes the sink.
bool knows_sink(const passes::Mod& mod, const plan::KernelConfig& config);
// most: as for SymbolTable.
std::string emit_sink(const passes::Mod& mod, const plan::KernelConfig& config,
                      passes::Precision most);

} // namespace flexc::cuda
