// What a rank does to its tensors between launches of kernels, and how its messages go: at once in
// host memory, or in a GPU's memory in the order of streams.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "flexc/distributed.h"
#include "ranks/partial_sums.h"
#include "ranks/rank_sums.h"
#include "ranks/sinks.h"

namespace flexc::distributed {

// Memory that one call works in. When its last owner lets go, what the same rank does later may get
// it.
using Bytes = std::shared_ptr<std::byte[]>;

class TensorWork {
  public:
    TensorWork() = default;
    TensorWork(const TensorWork&) = delete;
    TensorWork& operator=(const TensorWork&) = delete;
    virtual ~TensorWork() = default;

    // Aligned for kernels; never null.
    virtual Result<Bytes> allocate(std::size_t bytes) = 0;
    virtual Result<void> clear(void* data, std::size_t bytes) = 0;
    // Between tensors of one shape: as it is, or from or to f32.
    virtual Result<void> copy(const TensorView& from, const TensorView& to) = 0;
    // to += from, both f32.
    virtual Result<void> add(const TensorView& from, const TensorView& to) = 0;

    // As their headers say.
    virtual Result<void> merge(const ranks::PartialSums& sums, const ranks::Part& part) = 0;
    virtual Result<void> finish(const ranks::FinishedRows& rows) = 0;
    virtual Result<void> add_sinks(const ranks::SinkRows& rows) = 0;
    virtual Result<void> sink_gradients(const ranks::SinkGradients& sinks) = 0;
    virtual Result<void> sum(const ranks::RankSums& sums) = 0;
};

// One call at a time, between begin() and end().
class RankWork {
  public:
    RankWork() = default;
    RankWork(const RankWork&) = delete;
    RankWork& operator=(const RankWork&) = delete;
    virtual ~RankWork() = default;

    virtual Result<void> begin(Stream stream) = 0;
    virtual Result<void> end() = 0;
    virtual Stream stream() const = 0; // of launches

    // For launches that need nothing of those in stream(), which they fill the GPU beside: comes
    // after all so far. What comes to stream() after join() finds them done.
    virtual Result<Stream> fork() = 0;
    virtual Result<void> join() = 0;

    // In the order of launches.
    virtual TensorWork& tensors() = 0;
    // For what is sent, and where something is received: comes after all so far, and beside what
    // comes to tensors() before wait().
    virtual Result<TensorWork*> beside() = 0;
    // Of messages that beside() made; `memory` owns them.
    virtual Result<Communicator::Ticket> start(Communicator& communicator, int channel,
                                               std::span<const Communicator::Message> sends,
                                               std::span<const Communicator::Message> receives,
                                               std::shared_ptr<void> memory) = 0;
    // What comes to tensors() later finds the messages done.
    virtual Result<void> wait(Communicator& communicator, Communicator::Ticket ticket) = 0;
    // Until all messages are done, with an end.
    virtual Result<void> finish(Communicator& communicator) = 0;

    // The tensor, or a copy in host memory that `memory` owns.
    virtual Result<TensorView> on_host(const TensorView& tensor, Bytes& memory) = 0;
    // A tensor of host memory, or a copy where launches read it, that `memory` owns.
    virtual Result<TensorView> for_launches(const TensorView& tensor, Bytes& memory) = 0;
};

} // namespace flexc::distributed
