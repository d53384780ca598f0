// A 2-D key index: keys in rows of `width` columns: what is one number for a row of the 2-D key
// index, and what repeats from row to row.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "analysis/affine.h"
#include "ir/graph.h"

namespace flexc::analysis {

enum class KeyUse : std::uint8_t {
    none,
    quotient,  // through kv // width alone
    remainder, // through kv % width alone
    other
};
std::string_view name(KeyUse use);

// How a node uses kv, whatever the width of the 2-D key index.
struct KeyUses {
    // The greatest number that divides the divisors of all quotients that it uses kv through, and
    // the least that those of all remainders divide. 0: it uses none.
    std::int64_t quotients = 0, remainders = 0;
    bool others = false; // or kv itself

    KeyUse with(std::int64_t width) const;
};

// One entry per node.
std::vector<KeyUses> key_uses(const ir::Graph& graph);
// Of the nodes that were made since.
void extend_key_uses(std::vector<KeyUses>& uses, const ir::Graph& graph);

// Whether an integer of this form gains the same from each column of the 2-D key index to the
// next, in all rows; or from each row to the next, in all columns.
bool is_linear_by_column(const ir::Graph& graph, const AffineForm& form, std::int64_t width);
bool is_linear_by_row(const ir::Graph& graph, const AffineForm& form, std::int64_t width);

// The constants above one by which the roots divide kv, quotient or remainder; ascending.
std::vector<std::int64_t> key_divisors(const ir::Graph& graph, std::span<const ir::NodeId> roots);

} // namespace flexc::analysis
