#include "runtime/staged_copies.h"

#include <bit>
#include <cstring>
#include <utility>
#include <vector>

namespace flexc::runtime {

namespace {

constexpr std::size_t kMostStages = 8;
// Up to so many bytes of pageable memory, the driver copies during the call, which is faster than a
// stage.
constexpr std::size_t kMostInCall = 1 << 16;

void join(std::span<const std::span<const std::byte>> pieces, std::byte* to) {
    for (const std::span<const std::byte> piece : pieces) {
        if (piece.empty()) continue;
        std::memcpy(to, piece.data(), piece.size());
        to += piece.size();
    }
}

} // namespace

// At process end the driver may be gone, so failures are ignored.
StagedCopies::~StagedCopies() {
    for (const Stage& stage : stages_)
        (void)cuda::synchronize_event(stage.copied.get());
}

Result<void> StagedCopies::copy(void* to, std::span<const std::span<const std::byte>> pieces,
                                void* stream) {
    std::size_t bytes = 0;
    for (const std::span<const std::byte> piece : pieces)
        bytes += piece.size();
    if (bytes == 0) return {};
    if (bytes <= kMostInCall) {
        std::vector<std::byte> all(bytes);
        join(pieces, all.data());
        return cuda::copy_to_device_async(to, all.data(), bytes, stream);
    }
    // Event queries and host allocations must not be part of a graph that the caller captures.
    const cuda::UncapturedScope uncaptured;
    auto stage = take(bytes);
    if (!stage) return stage.error();
    join(pieces, static_cast<std::byte*>(stage->memory.get()));
    Result<void> done = cuda::copy_to_device_async(to, stage->memory.get(), bytes, stream);
    if (done) done = cuda::record_event(stage->copied.get(), stream);
    // If no event marks the end of the copy, wait for the stream.
    if (!done) (void)cuda::synchronize_stream(stream);
    const std::lock_guard lock(mutex_);
    stages_.push_back(std::move(*stage));
    return done;
}

Result<StagedCopies::Stage> StagedCopies::take(std::size_t bytes) {
    Stage stage;
    bool is_done = true;
    {
        const std::lock_guard lock(mutex_);
        if (!stages_.empty()) {
            auto happened = cuda::has_happened(stages_.front().copied.get());
            if (!happened) return happened.error();
            is_done = *happened;
            if (is_done || stages_.size() >= kMostStages) {
                stage = std::move(stages_.front());
                stages_.pop_front();
            }
        }
    }
    if (!is_done && stage.copied.get() != nullptr)
        if (auto done = cuda::synchronize_event(stage.copied.get()); !done) return done.error();
    if (stage.bytes < bytes) {
        stage.bytes = std::bit_ceil(bytes);
        auto memory = cuda::allocate_host(stage.bytes);
        if (!memory) return memory.error();
        stage.memory = cuda::OwnedHostMemory(device_, *memory);
    }
    // A new event each time, because an event belongs to the context of its stream.
    auto event = cuda::create_event(false);
    if (!event) return event.error();
    stage.copied = cuda::OwnedEvent(device_, *event);
    return stage;
}

} // namespace flexc::runtime
