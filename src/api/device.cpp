// Devices for programs that have no CUDA code of their own.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "api/frontend.h"
#include "cuda/driver.h"
#include "flexc/compile.h"
#include "runtime/alignment.h"
#include "support/text.h"

namespace flexc {

namespace {

bool on_cuda(Device device) { return device.kind == Device::Kind::cuda; }

} // namespace

Device default_device() {
    const auto driver = cuda::driver_info();
    if (driver && driver->device_count > 0)
        if (const auto info = cuda::device_info(0); info && info->arch >= 80)
            return Device::cuda(0);
    return Device::cpu();
}

Result<DeviceMemory> DeviceMemory::allocate(Device device, std::size_t bytes) {
    DeviceMemory memory;
    if (device.kind == Device::Kind::automatic) device = default_device();
    memory.device_ = device;
    memory.bytes_ = bytes;
    if (bytes == 0) return memory;
    if (on_cuda(device)) {
        auto scope = cuda::ContextScope::enter(device.index);
        if (!scope) return scope.error();
        auto data = cuda::allocate(bytes);
        if (!data) return data.error();
        memory.data_ = *data;
        if (auto done = cuda::fill_async(memory.data_, 0, bytes, nullptr); !done)
            return done.error();
        if (auto done = cuda::synchronize_context(); !done) return done.error();
        return memory;
    }
    memory.data_ = std::aligned_alloc(runtime::kAlignment, runtime::aligned(bytes));
    if (memory.data_ == nullptr)
        return Error{ErrorCode::limit, formatted("out of memory: {} bytes", bytes)};
    std::memset(memory.data_, 0, runtime::aligned(bytes));
    return memory;
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : device_(other.device_), data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

DeviceMemory::~DeviceMemory() {
    if (data_ == nullptr) return;
    if (!on_cuda(device_)) {
        std::free(data_);
        return;
    }
    if (auto scope = cuda::ContextScope::enter(device_.index)) (void)cuda::release(data_);
}

Result<void> DeviceMemory::upload(const void* host, std::size_t bytes) {
    if (bytes > bytes_)
        return Error{ErrorCode::invalid_option,
                     formatted("{} bytes do not fit into {}", bytes, bytes_)};
    if (bytes == 0) return {};
    if (!on_cuda(device_)) {
        std::memcpy(data_, host, bytes);
        return {};
    }
    auto scope = cuda::ContextScope::enter(device_.index);
    if (!scope) return scope.error();
    return cuda::copy_to_device(data_, host, bytes);
}

Result<void> DeviceMemory::download(void* host, std::size_t bytes) const {
    if (bytes > bytes_)
        return Error{ErrorCode::invalid_option,
                     formatted("{} bytes were asked of {}", bytes, bytes_)};
    if (bytes == 0) return {};
    if (!on_cuda(device_)) {
        std::memcpy(host, data_, bytes);
        return {};
    }
    auto scope = cuda::ContextScope::enter(device_.index);
    if (!scope) return scope.error();
    return cuda::copy_to_host(host, data_, bytes);
}

Result<void> DeviceMemory::fill(std::uint8_t byte) {
    if (bytes_ == 0) return {};
    if (!on_cuda(device_)) {
        std::memset(data_, byte, bytes_);
        return {};
    }
    auto scope = cuda::ContextScope::enter(device_.index);
    if (!scope) return scope.error();
    if (auto done = cuda::fill_async(data_, byte, bytes_, nullptr); !done) return done;
    return cuda::synchronize_context();
}

Result<void> synchronize(Device device) {
    if (!on_cuda(device)) return {};
    auto scope = cuda::ContextScope::enter(device.index);
    if (!scope) return scope.error();
    return cuda::synchronize_context();
}

namespace {

// A start and a stop event that cannot leak.
class EventPair {
  public:
    static Result<EventPair> create() {
        EventPair pair;
        for (void*& event : pair.events_) {
            auto made = cuda::create_event();
            if (!made) return made.error();
            event = *made;
        }
        return pair;
    }
    EventPair(EventPair&& other) noexcept
        : events_{std::exchange(other.events_[0], nullptr),
                  std::exchange(other.events_[1], nullptr)} {}
    EventPair& operator=(EventPair&&) = delete;
    ~EventPair() {
        for (void* event : events_)
            if (event != nullptr) (void)cuda::destroy_event(event);
    }
    void* start() const { return events_[0]; }
    void* stop() const { return events_[1]; }

  private:
    EventPair() = default;
    void* events_[2] = {};
};

Result<std::vector<double>> measure_cuda(Device device, int repeats, Result<void> (*work)(void*),
                                         void* user) {
    auto info = cuda::device_info(device.index);
    if (!info) return info.error();
    // Writing four times the L2 leaves nothing of the inputs in it.
    auto flush = DeviceMemory::allocate(device, std::max<std::size_t>(info->l2_bytes, 1 << 20) * 4);
    if (!flush) return flush.error();
    auto scope = cuda::ContextScope::enter(device.index);
    if (!scope) return scope.error();
    auto events = EventPair::create();
    if (!events) return events.error();
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
        if (auto done = cuda::fill_async(flush->data(), 0, flush->bytes(), nullptr); !done)
            return done.error();
        if (auto done = cuda::record_event(events->start(), nullptr); !done) return done.error();
        if (auto done = work(user); !done) return done.error();
        if (auto done = cuda::record_event(events->stop(), nullptr); !done) return done.error();
        auto elapsed = cuda::elapsed_ms(events->start(), events->stop());
        if (!elapsed) return elapsed.error();
        times.push_back(*elapsed);
    }
    return times;
}

} // namespace

Result<std::vector<double>> Timer::measure(Device device, int repeats, Result<void> (*work)(void*),
                                           void* user) {
    return api::guarded([&]() -> Result<std::vector<double>> {
        if (on_cuda(device)) return measure_cuda(device, repeats, work, user);
        std::vector<double> times;
        for (int i = 0; i < repeats; ++i) {
            const auto start = std::chrono::steady_clock::now();
            if (auto done = work(user); !done) return done.error();
            times.push_back(
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                    .count());
        }
        return times;
    });
}

} // namespace flexc
