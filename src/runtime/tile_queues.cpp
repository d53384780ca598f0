#include "runtime/tile_queues.h"

#include <vector>

#include "cuda/driver.h"

namespace flexc::runtime {

namespace {

constexpr std::size_t kIntegers = 2; // of one queue

} // namespace

TileQueues::~TileQueues() {
    // At process end the driver may be gone, so failures are ignored.
    if (memory_ != nullptr) (void)cuda::release(memory_);
}

Result<void> TileQueues::allocate() {
    const std::vector<int> zeros(kCount * kIntegers, 0);
    auto memory = cuda::allocate(zeros.size() * sizeof(int));
    if (!memory) return memory.error();
    memory_ = *memory;
    return cuda::copy_to_device(memory_, zeros.data(), zeros.size() * sizeof(int));
}

int* TileQueues::take() const {
    if (memory_ == nullptr || used_ == kCount) return nullptr;
    return static_cast<int*>(memory_) + kIntegers * used_++;
}

int* TileQueues::of(void* stream) const {
    const cuda::StreamState state = cuda::stream_state(stream);
    const std::lock_guard lock(mutex_);
    if (state.is_capturing) return take();
    if (!state.id) return nullptr;
    const auto [entry, is_new] = of_stream_.try_emplace(*state.id, nullptr);
    if (is_new) entry->second = take();
    return entry->second;
}

} // namespace flexc::runtime
