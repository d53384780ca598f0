// The CPU backend's Executable.
#pragma once

#include <memory>

#include "cpu/executable.h"
#include "passes/mod.h"
#include "runtime/executable.h"

namespace flexc::runtime {

std::shared_ptr<const Executable> wrap_cpu(std::shared_ptr<const cpu::Executable> compiled,
                                           KernelInfo info, const passes::Mod& mod);

} // namespace flexc::runtime
