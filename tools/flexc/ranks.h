// One attention problem of a tensor file on many ranks: each reads its rows, the first has the
// whole result.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flexc/attention_call.h"
#include "flexc/command_line.h"
#include "flexc/distributed.h"
#include "flexc/safetensors.h"

namespace flexc::cli {

struct RankOption {
    std::string ranks = "one", exchange = "auto";
};

void add_rank_options(CommandLine command, RankOption& option);
// Null for one rank alone; options that do not go together are usage errors.
std::shared_ptr<Communicator> open_ranks(const RankOption& option);

struct RankedProblem {
    std::string text;
    CompileOptions options; // for the types of the file
    ProblemShape shape;
    Signature signature;
    std::optional<double> scale;
    std::vector<std::pair<std::string, double>> params;
    DType output_type = DType::f32; // of o
    bool backward = false;
};

struct RankedRun {
    double compile_ms = 0, forward_ms = 0, backward_ms = 0;
    bool from_cache = false;
    Exchange exchange = Exchange::automatic;
    Traffic traffic;                   // of this rank
    std::vector<OutputTensor> outputs; // whole, on rank 0; elsewhere empty
};

RankedRun run_on_ranks(const RankedProblem& problem, const TensorFile& file,
                       std::shared_ptr<Communicator> communicator, std::string_view exchange);

} // namespace flexc::cli
