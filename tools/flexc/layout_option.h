// How the tensors of requests lie: the options of it, and what the file has of lengths.
#pragma once

#include <string>

#include "flexc/attention_call.h"
#include "flexc/command_line.h"
#include "flexc/safetensors.h"

namespace flexc::cli {

struct LayoutOption {
    std::string query_layout = "dense", key_layout = "dense", query_start = "auto";
};
void add_layout_options(CommandLine command, LayoutOption& option);
// Where lengths are, too.
void add_query_start_option(CommandLine command, LayoutOption& option);
void apply(const LayoutOption& option, CompileOptions& options);
bool is_dense(const LayoutOption& option);

// As problem_shape(), with the lengths; throws CommandError with every problem found.
ProblemShape requests_shape(const TensorFile& file, const LayoutOption& option);

// "8x1@32768,1x512@4096": how many requests, of how many queries, at how many keys. Pages are in no
// order; a page_size of 0: ragged keys.
ProblemShape made_up_requests(const std::string& requests, std::int64_t page_size);

} // namespace flexc::cli
