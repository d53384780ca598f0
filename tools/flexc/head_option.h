// The heads of a larger whole that a call has, as with tensor parallelism.
#pragma once

#include <cstdint>
#include <optional>

#include "flexc/command_line.h"
#include "flexc/kernel.h"

namespace flexc::cli {

struct HeadOption {
    std::optional<std::int64_t> offset, heads, kv_heads; // none of them: all heads are there
};

void add_head_options(CommandLine command, HeadOption& option);
bool is_part(const HeadOption& option);
void apply(const HeadOption& option, PlanOptions& options);

} // namespace flexc::cli
