#include "flexc/compile_options.h"

#include "flexc/mod_option.h"

namespace flexc::cli {

void add_kernel_options(CommandLine command, KernelOption& option) {
    command.option("--dtype", option.dtype, "Type of q, k and v: f32, f16 or bf16");
    command.option("--head-dim", option.head_dim, "D, 1 to 256", {.most = 256});
    command.option("--head-dim-v", option.head_dim_v, "DV, when it is not D", {.most = 256});
    command.flag("--backward", option.backward, "The backward kernels too");
    command.flag("--deterministic", option.deterministic, "Kernels that give the same bits");
    command.option("--forward-kernel", option.forward_kernel, "auto, generic or hopper");
    command.option("--schedule", option.schedule,
                   "How the forward kernel divides its work, as explain --stage plan prints it");
    command.option("--backward-kernel", option.backward_kernel,
                   "auto, fused, split, generic or hopper");
    command.option("--mask-tiles", option.tile_source, "auto, ranges or maps");
}

void apply(const KernelOption& option, CompileOptions& options) {
    options.dtype = parse_element_type(option.dtype);
    options.head_dim = option.head_dim;
    options.head_dim_v = option.head_dim_v;
    options.backward = option.backward;
    options.deterministic = option.deterministic;
    options.forward_kernel = parse_forward_kernel(option.forward_kernel);
    options.schedule = option.schedule;
    options.backward_kernel = parse_backward_kernel(option.backward_kernel);
    options.tile_source = parse_tile_source(option.tile_source);
}

} // namespace flexc::cli
