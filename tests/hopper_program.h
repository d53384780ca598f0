// Programs as kernels for Hopper see them, in bf16: for tests of what is planned.
#pragma once

#include <memory>
#include <utility>

#include "passes/pipeline.h"
#include "plan/target_program.h"

namespace flexc::test {

inline std::unique_ptr<plan::TargetProgram> hopper_program(ir::Program source, int head_dim = 128) {
    auto mod = passes::lower(std::move(source), {.head_dim = head_dim, .head_dim_v = head_dim});
    if (!mod) return nullptr; // larger than a program may be
    CompileOptions options;
    options.dtype = DType::bf16;
    options.head_dim = options.head_dim_v = head_dim;
    return std::make_unique<plan::TargetProgram>(std::move(*mod), std::move(options),
                                                 *plan::target_of("sm_90a"));
}

} // namespace flexc::test
