#include "flexc/compile_options.h"

#include "flexc/mod_option.h"

namespace flexc::cli {

void add_choice_options(CommandLine command, ChoiceOption& option) {
    command.flag("--deterministic", option.deterministic, "The same bits on every run");
    command.option("--forward-kernel", option.forward_kernel, "auto, generic or hopper");
    command.option("--backward-kernel", option.backward_kernel,
                   "auto, fused, split, generic or hopper");
    command.option("--mask-tiles", option.tile_source, "auto, ranges or maps");
    command.option("--gradient-type", option.gradient_type,
                   "f32, or buffer: that of the buffer which the gradient is of");
}

void apply(const ChoiceOption& option, CompileOptions& options) {
    options.deterministic = option.deterministic;
    options.forward_kernel = parse_forward_kernel(option.forward_kernel);
    options.backward_kernel = parse_backward_kernel(option.backward_kernel);
    options.tile_source = parse_tile_source(option.tile_source);
    options.gradient_type = parse_gradient_type(option.gradient_type);
}

void add_kernel_options(CommandLine command, KernelOption& option) {
    command.option("--dtype", option.dtype, "Type of q, k and v: f32, f16 or bf16");
    command.option("--head-dim", option.head_dim, "D, 1 to 256", {.most = 256});
    command.option("--head-dim-v", option.head_dim_v, "DV, when it is not D", {.most = 256});
    command.flag("--backward", option.backward, "The backward kernels too");
    add_choice_options(command, option.choice);
    command.option("--schedule", option.schedule,
                   "How the forward kernel divides its work, as explain --stage plan prints it");
}

void apply(const KernelOption& option, CompileOptions& options) {
    options.dtype = parse_element_type(option.dtype);
    options.head_dim = option.head_dim;
    options.head_dim_v = option.head_dim_v;
    options.backward = option.backward;
    apply(option.choice, options);
    options.schedule = option.schedule;
}

} // namespace flexc::cli
