#include "flexc/head_option.h"

namespace flexc::cli {

void add_head_options(CommandLine command, HeadOption& option) {
    command.option("--head-offset", option.offset,
                   "h of the first head of q: the tensors have some heads of a larger whole, which "
                   "H, H_KV and buffers are of");
    command.option("--global-heads", option.heads, "H of the whole; else it ends with these heads");
    command.option("--global-kv-heads", option.kv_heads,
                   "H_KV of the whole; else its heads share keys as these do");
}

bool is_part(const HeadOption& option) { return option.offset || option.heads || option.kv_heads; }

void apply(const HeadOption& option, PlanOptions& options) {
    options.head_offset = option.offset.value_or(0);
    options.global_heads = option.heads;
    options.global_kv_heads = option.kv_heads;
}

} // namespace flexc::cli
