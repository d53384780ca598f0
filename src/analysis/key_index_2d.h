// The 2-D key index: keys in rows of `width` columns. Finds values that are the same for a whole
// row, and values that repeat from row to row.
#pragma once

#include <cstdint>
#include <functional>
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

// How a node uses kv, independent of the width.
struct KeyUses {
    // The greatest common divisor of the divisors of all quotients through which it uses kv, and
    // the least common multiple of those of all remainders. 0 if there are none.
    std::int64_t quotients = 0, remainders = 0;
    bool others = false; // or kv itself

    KeyUse with(std::int64_t width) const;
};

// Returns one entry per node.
std::vector<KeyUses> key_uses(const ir::Graph& graph);
// Adds entries for nodes that were made since.
void extend_key_uses(std::vector<KeyUses>& uses, const ir::Graph& graph);

// Whether an integer of this form increases by the same amount from each column of the 2-D key
// index to the next, in all rows; or from each row to the next, in all columns.
bool is_linear_by_column(const ir::Graph& graph, const AffineForm& form, std::int64_t width);
bool is_linear_by_row(const ir::Graph& graph, const AffineForm& form, std::int64_t width);

// The constants above one by which the roots divide kv, quotient or remainder; ascending.
std::vector<std::int64_t> key_divisors(const ir::Graph& graph, std::span<const ir::NodeId> roots);
// Widths of 2-D key indices by which the roots may use kv: what they divide it by, and, where that
// is more than any tile's, its greatest divisor that suits. Ascending.
inline constexpr std::int64_t kWidest = 128;
std::vector<std::int64_t> key_widths(const ir::Graph& graph, std::span<const ir::NodeId> roots,
                                     const std::function<bool(std::int64_t)>& suits);

} // namespace flexc::analysis
