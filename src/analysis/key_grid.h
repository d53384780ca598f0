// Keys as a grid of `width` columns: what is one number for a row of the grid, and what repeats
// from row to row.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace flexc::analysis {

enum class KeyUse : std::uint8_t {
    none,
    quotient,  // through kv // width alone
    remainder, // through kv % width alone
    other
};
std::string_view name(KeyUse use);

// One entry per node: how it uses kv.
std::vector<KeyUse> key_uses(const ir::Graph& graph, std::int64_t width);

// Whether an integer gains the same from each column of the grid to the next, in all rows; from
// each row to the next, in all columns; or from each query to the next.
bool is_linear_by_column(const ir::Graph& graph, ir::NodeId id, std::int64_t width);
bool is_linear_by_row(const ir::Graph& graph, ir::NodeId id, std::int64_t width);
bool is_linear_by_query(const ir::Graph& graph, ir::NodeId id);

// The constants above one by which the roots divide kv, quotient or remainder; ascending.
std::vector<std::int64_t> key_divisors(const ir::Graph& graph, std::span<const ir::NodeId> roots);

} // namespace flexc::analysis
