// Ranges of integers in a call, which knows its sizes and params.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/range.h"
#include "ir/program.h"

namespace flexc::analysis {

// `count` positions from `first` on.
inline Interval positions(std::int64_t first, std::int64_t count) {
    return {first, first + count - 1};
}

// What a call of dense tensors knows.
struct CallValues {
    Interval b, h, h_kv, q, kv;          // the positions of its elements
    std::span<const std::int64_t> sizes; // one per Program::sizes
    std::vector<Interval> params;        // one per Program::params
};

// Whether an integer is made of positions, sizes and params alone.
bool is_known_to_calls(const ir::Graph& graph, ir::NodeId id);

// Whether every index of these reads is inside its buffer for all elements of the call. Indices
// that are made of more are taken to be outside.
bool are_inside(const ir::Program& program, std::span<const ir::NodeId> reads,
                const CallValues& values);

} // namespace flexc::analysis
