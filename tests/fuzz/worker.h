// Runs inputs in a process of its own, so that whatever happens to it is seen from outside.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "fuzz.h"

namespace flexc::fuzz {

// What the two processes share. Times are seconds of the worker's processor.
struct Progress {
    volatile std::uint64_t index = 0; // of the input that runs
    volatile std::uint64_t accepted = 0;
    volatile std::uint64_t slowest = 0;
    volatile double slowest_seconds = 0;
    volatile double started = 0; // when the input began
    volatile double used = 0;    // when the last one ended
};

// An input by its number, or nothing after the last.
using Inputs = std::function<bool(std::uint64_t index, std::string& input)>;

struct Limits {
    double cpu_seconds = 0;
    std::uint64_t memory_bytes = 0;
};

struct Outcome {
    std::string failure; // empty: all inputs were run; else what happened to the last
    std::string report;  // what the worker wrote, the end of it
    Progress progress;
};

// Runs `target` on the inputs from `first` on.
Outcome run_inputs(const Target& target, std::uint64_t first, const Inputs& inputs,
                   const Limits& limits);

} // namespace flexc::fuzz
