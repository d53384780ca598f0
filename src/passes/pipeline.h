// THE ordered list of passes.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "flexc/result.h"
#include "ir/program.h"
#include "passes/mod.h"

namespace flexc::passes {

struct PipelineOptions {
    bool backward = true;
    bool report_out_of_range = false;
    bool deterministic = false;
    // Whether kernels compute ranges of tiles for prefixes and padding; otherwise these have block
    // masks.
    bool clamps_bands = false;
    bool divides_by_derivative = false;  // see passes/gradient_factor.h
    bool rows_are_whole = true;          // see passes/row_gradient.h
    const dsl::Source* source = nullptr; // of the program, for places in errors
    int head_dim = 0;                    // becomes the constant D; 0 leaves it a size
    int head_dim_v = 0;
    // Called after each pass with its name, the IR text and how long it took; may be empty.
    std::function<void(std::string_view pass, std::string_view ir, double ms)> trace;
};

Result<Mod> lower(ir::Program program, const PipelineOptions& options);

} // namespace flexc::passes
