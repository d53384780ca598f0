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

// No more factors than any program has that is not made to be slow.
inline constexpr std::size_t kMaxFactors = 8;

// Empty beyond kMaxFactors, or where the constant leaves int64.
std::optional<Product> multiply(const Product& x, const Product& y);
// x / y where that is a product: y's constant divides x's, and x has all of y's factors.
std::optional<Product> quotient(const Product& x, const Product& y);
Product negative(Product x);

// The node as a product, taken apart so many levels deep.
Product product_of(const ir::Graph& graph, ir::NodeId id, int depth = 3);

} // namespace flexc::analysis
