// A mod with made-up tensors of one shape: what bench and tune time.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "flexc/attention_call.h"
#include "flexc/command_line.h"
#include "flexc/mod_option.h"
#include "flexc/time_limit.h"

namespace flexc::cli {

struct BenchOption {
    ModOption mod;
    std::string shape, dtype = "bf16", kv_dtype, device = "auto"; // kv_dtype empty: dtype
    std::vector<std::string> dims, fills;
    std::optional<double> scale;
    std::string strides = "bhsd";
    std::string requests; // empty: dense
    std::int64_t page_size = 0;
    std::optional<double> max_seconds;
};
void add_bench_options(CommandLine command, BenchOption& option);
// Of the whole command.
TimeLimit time_limit(const BenchOption& option, bool as_json);

struct BufferContents {
    BufferInfo info;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
    std::string fill;
};

struct BenchCase {
    ModText mod; // its options name the types, head dims and the device
    Signature signature;
    ProblemShape problem;
    std::optional<double> scale;
    TensorStrides strides = TensorStrides::bhsd;
    std::vector<BufferContents> buffers;

    void add_buffers(AttentionCall& call) const;
};
BenchCase make_case(const BenchOption& option);

// Random q, k, v and, with backward, do; ready to run.
AttentionCall make_call(const BenchCase& bench, Kernel kernel, bool backward,
                        OutputType output_type = OutputType::input);

// In milliseconds. `work` is given the call.
double median_time(const AttentionCall& call, Result<void> (*work)(void*));
// The median over short loads, with a rest before each: a chip that is limited by its power slows
// down under longer ones, at some point of theirs, and times of the same kernel differ by 5 % then.
// With rests it is less than 1 %.
double rested_time(const AttentionCall& call, Result<void> (*work)(void*), int loads);
double median(std::vector<double> values);
Result<void> run_forward(void* call);

// Matrix products only: two of them forward, five backward, over what the mask lets through.
double tera_operations(const ProblemShape& shape, bool backward, double fraction);

} // namespace flexc::cli
