// A mod on made-up tensors across ranks, beside one rank that computes the whole.
#pragma once

#include <memory>

#include <nlohmann/json.hpp>

#include "flexc/bench_case.h"
#include "flexc/ranked_call.h"

namespace flexc::cli {

struct RankedBench {
    bool backward = false;
    OutputType output_type = OutputType::input;
    RankOption ranks;
};

// Called by all ranks together; what flexc bench reports of them, on rank 0.
nlohmann::json bench_on_ranks(const BenchCase& bench, const RankedBench& options,
                              const std::shared_ptr<Communicator>& communicator);
// For people.
void print_ranked_summary(const nlohmann::json& value);

} // namespace flexc::cli
