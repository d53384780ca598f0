// Checks of a plan's sizes against the limits of kernels.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/sequences.h"
#include "flexc/kernel.h"
#include "flexc/result.h"
#include "ir/program.h"

namespace flexc::runtime {

inline Error too_large(std::string message) { return {ErrorCode::limit, std::move(message)}; }

// Checks limits that keep every product of sizes in kernels and their workspaces within 63 bits.
Result<void> check_lengths(const Sizes& sizes, bool is_dense, int head_dim, int head_dim_v);

// Checks the extents of all buffers, including those that are not passed yet or only to launches.
Result<void> check_extents(const ir::Program& program, std::span<const std::int64_t> sizes);

bool has_sums(const ir::Program& program);
// Checks that sums whose ranges depend on sizes have no more terms than constant ranges may have.
Result<void> check_sums(const ir::Program& program, const std::vector<std::int64_t>& sizes,
                        const Sequence* sequence = nullptr);
// The same for the largest lengths that a request may have.
Result<void> check_most_terms(const ir::Program& program,
                              const std::vector<std::int64_t>& size_values, const Sizes& sizes);

} // namespace flexc::runtime
