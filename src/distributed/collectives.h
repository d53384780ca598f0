// What all ranks do together, made of messages between pairs.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "flexc/distributed.h"

namespace flexc::distributed {

inline constexpr int kKeyChannel = 0, kGradientChannel = 1;

// One record of each rank, in the order of ranks; all have the same size.
Result<std::vector<std::byte>> all_gather(Communicator& communicator,
                                          std::span<const std::byte> own);

// values becomes `factor` times the sum over ranks, in the order of ranks, the same bits on each.
Result<void> all_reduce(Communicator& communicator, std::span<float> values, float factor);

} // namespace flexc::distributed
