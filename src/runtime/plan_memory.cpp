#include "runtime/plan_memory.h"

#include <utility>

#include "cuda/driver.h"

namespace flexc::runtime {

// At process end the driver may be gone, so failures are ignored here and in give_back().
PlanMemory::~PlanMemory() {
    auto scope = cuda::ContextScope::enter(device_);
    if (scope && kept_.data != nullptr) (void)cuda::release(kept_.data);
}

Result<std::shared_ptr<void>> PlanMemory::allocate(std::size_t bytes) {
    Block block = take(bytes);
    if (block.data == nullptr) {
        auto scope = cuda::ContextScope::enter(device_);
        if (!scope) return scope.error();
        auto memory = cuda::allocate(bytes);
        if (!memory) return memory.error();
        block = {*memory, bytes};
    }
    return std::shared_ptr<void>(
        block.data, [owner = shared_from_this(), block](void*) { owner->give_back(block); });
}

PlanMemory::Block PlanMemory::take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    return kept_.bytes < bytes ? Block() : std::exchange(kept_, {});
}

// Synchronizes first, because launches may still read the block (the driver does the same when
// memory is released).
void PlanMemory::give_back(Block block) {
    auto scope = cuda::ContextScope::enter(device_);
    if (!scope) return;
    const bool is_free = cuda::synchronize_context().has_value();
    {
        const std::lock_guard lock(mutex_);
        if (is_free && block.bytes > kept_.bytes) std::swap(block, kept_);
    }
    if (block.data != nullptr) (void)cuda::release(block.data);
}

} // namespace flexc::runtime
