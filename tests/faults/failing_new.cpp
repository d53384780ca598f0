#include "faults/failing_new.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

using flexc::test::Failing;

std::atomic<std::int64_t> next{0}, alive{0}, made{0};
std::atomic<bool> armed{false}, failed{false};
std::atomic<Failing> mode{Failing::once};

bool fails() {
    if (!armed.load(std::memory_order_relaxed)) return false;
    const std::int64_t left = next.fetch_sub(1);
    if (left > 0 || (left < 0 && mode == Failing::once)) return false;
    failed = true;
    return true;
}

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
    if (fails()) return nullptr;
    const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
    void* memory = alignment <= alignof(std::max_align_t)
                       ? std::malloc(bytes == 0 ? 1 : bytes)
                       : std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
    if (memory != nullptr) {
        alive.fetch_add(1, std::memory_order_relaxed);
        made.fetch_add(1, std::memory_order_relaxed);
    }
    return memory;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
    void* memory = allocate(bytes, alignment);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

void release(void* memory) noexcept {
    if (memory == nullptr) return;
    alive.fetch_sub(1, std::memory_order_relaxed);
    std::free(memory);
}

constexpr std::size_t kUsual = alignof(std::max_align_t);

} // namespace

namespace flexc::test {

void fail_after(std::int64_t before, Failing how) {
    mode = how;
    failed = false;
    next = before;
    armed = true;
}
void fail_no_more() { armed = false; }
bool has_failed() { return failed; }
std::int64_t living() { return alive; }
std::int64_t allocations() { return made; }

} // namespace flexc::test

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, kUsual); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, kUsual); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
    return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return allocate(bytes, kUsual);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
    return allocate(bytes, kUsual);
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }
