// What a rank does to its tensors between launches, and how its messages are sent: at once in host
// memory, or in GPU memory in stream order.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "flexc/distributed.h"
#include "ranks/partial_sums.h"
#include "ranks/rank_sums.h"
#include "ranks/sinks.h"

namespace flexc::distributed {

// Memory of one call. After its last owner has released it, later work of the same rank may reuse
// it.
using Bytes = std::shared_ptr<std::byte[]>;

struct Moved {
    TensorView from, to;
};

class TensorWork {
  public:
    TensorWork() = default;
    TensorWork(const TensorWork&) = delete;
    TensorWork& operator=(const TensorWork&) = delete;
    virtual ~TensorWork() = default;

    // Aligned for kernels; never null.
    virtual Result<Bytes> allocate(std::size_t bytes) = 0;
    virtual Result<void> clear(void* data, std::size_t bytes) = 0;
    // Copies between tensors of one shape that do not overlap, and converts from or to f32.
    virtual Result<void> copy(std::span<const Moved> all) = 0;
    // to += from, both f32.
    virtual Result<void> add(std::span<const Moved> all) = 0;
    Result<void> copy(const TensorView& from, const TensorView& to) {
        return copy(std::array{Moved{from, to}});
    }
    Result<void> add(const TensorView& from, const TensorView& to) {
        return add(std::array{Moved{from, to}});
    }

    // See templates/ranks for what these do.
    virtual Result<void> merge(const ranks::PartialSums& sums, const ranks::Part& part) = 0;
    virtual Result<void> finish(const ranks::FinishedRows& rows) = 0;
    virtual Result<void> add_sinks(const ranks::SinkRows& rows) = 0;
    virtual Result<void> sink_gradients(const ranks::SinkGradients& sinks) = 0;
    virtual Result<void> sum(const ranks::RankSums& sums) = 0;
};

// Used for one call at a time, between begin() and end().
class RankWork {
  public:
    RankWork() = default;
    RankWork(const RankWork&) = delete;
    RankWork& operator=(const RankWork&) = delete;
    virtual ~RankWork() = default;

    virtual Result<void> begin(Stream stream) = 0;
    virtual Result<void> end() = 0;
    virtual Stream stream() const = 0; // of launches

    // Returns a second stream of higher priority, for launches that are independent of those in
    // stream() and run beside them. It starts after all work of stream() so far. Later work in
    // stream() after join() waits for it.
    virtual Result<Stream> fork() = 0;
    virtual Result<void> join() = 0;

    // Operations in the order of launches.
    virtual TensorWork& tensors() = 0;
    // Operations on memory that is sent or received. They start after all work so far, and run
    // beside the work of tensors() until wait().
    virtual Result<TensorWork*> beside() = 0;
    // The same, started after the work of the forked stream alone.
    virtual Result<TensorWork*> beside_forked() = 0;
    // Starts messages in memory that beside() wrote; `memory` owns it.
    virtual Result<Communicator::Ticket> start(Communicator& communicator, int channel,
                                               std::span<const Communicator::Message> sends,
                                               std::span<const Communicator::Message> receives,
                                               std::shared_ptr<void> memory) = 0;
    // Later work in stream() starts when what messages need is packed, so that they can begin
    // before launches occupy the device.
    virtual Result<void> let_messages_begin() = 0;
    // Later launches, forked or not, and later work of tensors() start when the messages are done.
    virtual Result<void> wait(Communicator& communicator, Communicator::Ticket ticket) = 0;
    // Waits until all messages are done, with a timeout.
    virtual Result<void> finish(Communicator& communicator) = 0;

    // Returns the tensor, or a copy in host memory that `memory` owns.
    virtual Result<TensorView> on_host(const TensorView& tensor, Bytes& memory) = 0;
    // Returns a host tensor, or a copy where launches can read it, that `memory` owns.
    virtual Result<TensorView> for_launches(const TensorView& tensor, Bytes& memory) = 0;
};

} // namespace flexc::distributed
