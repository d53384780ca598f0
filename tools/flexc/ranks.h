// One attention problem of a tensor file on many ranks: each reads its rows, the first has the
// whole result.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flexc/command_line.h"
#include "flexc/ranked_call.h"
#include "flexc/safetensors.h"

namespace flexc::cli {

void add_rank_options(CommandLine command, RankOption& option);
// Null for one rank alone; options that do not go together are usage errors.
std::shared_ptr<Communicator> open_ranks(const RankOption& option, const CompileOptions& layouts);
// Of this rank; asked: by --device, which may name no other.
Device device_of(const RankOption& option, std::string_view asked = "auto");

struct RankedRun {
    double compile_ms = 0, forward_ms = 0, backward_ms = 0;
    bool from_cache = false;
    Exchange exchange = Exchange::automatic;
    const char* shards = "";           // as RankedCall::shards() says
    std::string plan;                  // what it does and why
    Traffic traffic;                   // of this rank
    std::vector<OutputTensor> outputs; // whole, on rank 0; elsewhere empty
};

RankedRun run_on_ranks(const RankedProblem& problem, const Signature& signature,
                       const TensorFile& file, std::shared_ptr<Communicator> communicator,
                       const RankOption& option);

} // namespace flexc::cli
