// The options that name a kernel where no tensors do.
#pragma once

#include <string>

#include "flexc/command_line.h"
#include "flexc/options.h"

namespace flexc::cli {

struct KernelOption {
    std::string dtype = "bf16";
    int head_dim = 64, head_dim_v = 0;
    bool backward = false, deterministic = false;
    std::string forward_kernel = "auto", backward_kernel = "auto", tile_source = "auto", schedule;
};

void add_kernel_options(CommandLine command, KernelOption& option);
void apply(const KernelOption& option, CompileOptions& options);

} // namespace flexc::cli
