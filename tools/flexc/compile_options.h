// The options that choose between kernels, and those that name one where no tensors do.
#pragma once

#include <optional>
#include <string>

#include "flexc/command_line.h"
#include "flexc/options.h"

namespace flexc::cli {

struct ChoiceOption {
    std::optional<double> max_seconds, max_memory;
    bool deterministic = false, batch_invariant = false, max_scores = false;
    std::string forward_kernel = "auto", backward_kernel = "auto", tile_source = "auto";
    std::string gradient_type = "f32";
};

void add_choice_options(CommandLine command, ChoiceOption& option);
void apply(const ChoiceOption& option, CompileOptions& options);

struct KernelOption {
    std::string dtype = "bf16", kv_dtype; // kv_dtype empty: dtype
    int head_dim = 64, head_dim_v = 0;
    bool backward = false;
    ChoiceOption choice;
    std::string schedule;
};

void add_kernel_options(CommandLine command, KernelOption& option);
void apply(const KernelOption& option, CompileOptions& options);

} // namespace flexc::cli
