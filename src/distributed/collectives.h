// Collective operations, built from messages between pairs of ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "distributed/tensor_work.h"
#include "flexc/distributed.h"

namespace flexc::distributed {

inline constexpr int kKeyChannel = 0, kGradientChannel = 1;

// Gathers one record of each rank, in the order of ranks; all have the same size.
class Gathering {
  public:
    static Result<Gathering> start(Communicator& communicator, std::span<const std::byte> own);
    Result<std::vector<std::byte>> finish(); // once

  private:
    using Records = std::shared_ptr<std::vector<std::byte>>;
    Gathering(Communicator& communicator, Records all, Communicator::Ticket ticket)
        : communicator_(&communicator), all_(std::move(all)), ticket_(ticket) {}

    Communicator* communicator_;
    Records all_;
    Communicator::Ticket ticket_;
};
inline Result<std::vector<std::byte>> all_gather(Communicator& communicator,
                                                 std::span<const std::byte> own) {
    auto gathering = Gathering::start(communicator, own);
    if (!gathering) return gathering.error();
    return gathering->finish();
}

// Replaces `values` (f32, contiguous, owned by `memory`) by `factor` times the sum over ranks,
// added in the order of ranks, so that the bits are the same on each.
Result<void> all_reduce(RankWork& work, Communicator& communicator, const TensorView& values,
                        const std::shared_ptr<void>& memory, float factor);

} // namespace flexc::distributed
