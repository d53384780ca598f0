// Products of numbers that are the same for all queries and keys.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace flexc::analysis {

// constant * factors. Equal products of the same nodes compare equal.
struct Product {
    std::int64_t constant = 1;
    std::vector<ir::NodeId> factors; // sorted, as often as they are there

    bool is(std::int64_t value) const { return constant == value && factors.empty(); }
    friend bool operator==(const Product&, const Product&) = default;
};

// More factors than any reasonable program has.
inline constexpr std::size_t kMaxFactors = 8;

// Empty beyond kMaxFactors, or if the constant exceeds int64.
std::optional<Product> multiply(const Product& x, const Product& y);
// Returns x / y if it is a product: y's constant divides x's, and x has all of y's factors.
std::optional<Product> quotient(const Product& x, const Product& y);
Product negative(Product x);

// Returns the node as a product, split up to `depth` levels deep.
Product product_of(const ir::Graph& graph, ir::NodeId id, int depth = 3);

} // namespace flexc::analysis
