#include "flexc/compile_options.h"

#include "flexc/command.h"
#include "flexc/mod_option.h"

namespace flexc::cli {

void add_choice_options(CommandLine command, ChoiceOption& option) {
    command.flag("--deterministic", option.deterministic, "The same bits on every run");
    command.flag("--batch-invariant", option.batch_invariant,
                 "The same bits of a request whatever others are in the batch");
    command.flag("--max-scores", option.max_scores, "The largest score of each row too");
    command.option("--forward-kernel", option.forward_kernel, "Which forward kernel",
                   {.usual = {"auto", "generic", "specialized"}});
    command.option("--backward-kernel", option.backward_kernel, "Which backward kernels",
                   {.usual = {"auto", "fused", "split", "generic", "specialized"}});
    command.option("--mask-tiles", option.tile_source,
                   "How kernels know the tiles of prefixes and padding",
                   {.usual = {"auto", "ranges", "block-mask"}});
    command.option("--gradient-type", option.gradient_type,
                   "f32, or buffer: that of the buffer which the gradient is of",
                   {.usual = {"f32", "buffer"}});
    command.option("--max-compile-seconds", option.max_seconds,
                   "Give up a compile that takes longer: 120 unless given, 0 for no limit");
    command.option("--max-compile-memory", option.max_memory,
                   "MiB by which a compile may let the process grow: 8192 unless given, 0 for any");
}

void apply(const ChoiceOption& option, CompileOptions& options) {
    options.deterministic = option.deterministic;
    options.batch_invariant = option.batch_invariant;
    options.max_scores = option.max_scores;
    options.forward_kernel = parse_forward_kernel(option.forward_kernel);
    options.backward_kernel = parse_backward_kernel(option.backward_kernel);
    options.tile_source = parse_tile_source(option.tile_source);
    options.gradient_type = parse_gradient_type(option.gradient_type);
    for (const auto& limit : {option.max_seconds, option.max_memory})
        if (limit && (*limit < 0 || *limit > 1e12))
            fail_usage("limits of a compile are from 0 to 1e12");
    if (option.max_seconds) options.limits.seconds = *option.max_seconds;
    if (option.max_memory)
        options.limits.memory_bytes = static_cast<std::uint64_t>(*option.max_memory * 1048576.0);
}

void add_kernel_options(CommandLine command, KernelOption& option) {
    command.option("--dtype", option.dtype, "Type of q, k and v",
                   {.usual = {"f32", "f16", "bf16"}});
    command.option("--kv-dtype", option.kv_dtype, "Of k and v, where it is another; forward only",
                   {.usual = {"e4m3", "e5m2", "i8"}});
    command.option("--head-dim", option.head_dim, "D, 1 to 256", {.most = 256});
    command.option("--head-dim-v", option.head_dim_v, "DV, when it is not D", {.most = 256});
    command.flag("--backward", option.backward, "The backward kernels too");
    add_choice_options(command, option.choice);
    command.option("--schedule", option.schedule,
                   "How the forward kernel divides its work, as explain --stage plan prints it");
}

void apply(const KernelOption& option, CompileOptions& options) {
    options.dtype = parse_element_type(option.dtype);
    if (!option.kv_dtype.empty()) options.kv_dtype = parse_narrow_type(option.kv_dtype);
    options.head_dim = option.head_dim;
    options.head_dim_v = option.head_dim_v;
    options.backward = option.backward;
    apply(option.choice, options);
    options.schedule = option.schedule;
}

} // namespace flexc::cli
