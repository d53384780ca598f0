// Streams, events and page-locked memory with owners.
#pragma once

#include <utility>

#include "cuda/driver.h"

namespace flexc::cuda {

// Owns a handle of one device; kDestroy runs in that device's context. Failures are ignored,
// because at the end of a process the driver may already be gone.
template <Result<void> (*kDestroy)(void*)> class Owned {
  public:
    Owned() = default;
    Owned(int device, void* handle) : device_(device), handle_(handle) {}
    Owned(Owned&& other) noexcept
        : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}
    Owned& operator=(Owned&& other) noexcept {
        std::swap(device_, other.device_);
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Owned() {
        if (handle_ == nullptr) return;
        if (auto scope = ContextScope::enter(device_)) (void)kDestroy(handle_);
    }
    void* get() const { return handle_; }

  private:
    int device_ = 0;
    void* handle_ = nullptr;
};

using OwnedStream = Owned<destroy_stream>;
using OwnedEvent = Owned<destroy_event>;
using OwnedHostMemory = Owned<release_host>;

// An event without timing, for ordering streams.
inline Result<OwnedEvent> make_event(int device) {
    auto scope = ContextScope::enter(device);
    if (!scope) return scope.error();
    auto event = create_event(false);
    if (!event) return event.error();
    return OwnedEvent(device, *event);
}
inline Result<OwnedStream> make_stream(int device, Priority priority) {
    auto scope = ContextScope::enter(device);
    if (!scope) return scope.error();
    auto stream = create_stream(priority);
    if (!stream) return stream.error();
    return OwnedStream(device, *stream);
}

} // namespace flexc::cuda
