#include "distributed/device_pool.h"

#include <algorithm>

#include "cuda/driver.h"
#include "runtime/alignment.h"

namespace flexc::distributed {

// At process end the driver may be gone, so failures are ignored.
DevicePool::~DevicePool() {
    auto scope = cuda::ContextScope::enter(device_);
    if (!scope) return;
    for (const Block& block : free_)
        (void)cuda::release(block.data);
}

Result<Bytes> DevicePool::allocate(std::size_t bytes) {
    auto block = take(runtime::aligned(std::max<std::size_t>(bytes, 1)));
    if (!block) return block.error();
    return Bytes(static_cast<std::byte*>(block->data),
                 [pool = shared_from_this(), own = *block](std::byte*) {
                     pool->free_.push_back(own); // has room for all blocks
                 });
}

// Takes the smallest free block that is large enough, unless it is much too large.
Result<DevicePool::Block> DevicePool::take(std::size_t bytes) {
    auto best = free_.end();
    for (auto one = free_.begin(); one != free_.end(); ++one)
        if (one->bytes >= bytes && one->bytes <= 2 * bytes &&
            (best == free_.end() || one->bytes < best->bytes))
            best = one;
    if (best != free_.end()) {
        const Block block = *best;
        free_.erase(best);
        return block;
    }
    free_.reserve(count_ + 1);
    auto scope = cuda::ContextScope::enter(device_);
    if (!scope) return scope.error();
    auto memory = cuda::allocate(bytes);
    if (!memory) return memory.error();
    ++count_;
    return Block{*memory, bytes};
}

} // namespace flexc::distributed
