// Devices for programs that have no CUDA code of their own.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
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
    return guarded_or(Device::cpu(), [] {
        const auto driver = cuda::driver_info();
        if (driver && driver->device_count > 0)
            if (const auto info = cuda::device_info(0); info && info->arch >= 80)
                return Device::cuda(0);
        return Device::cpu();
    });
}

Result<DeviceMemory> DeviceMemory::allocate(Device device, std::size_t bytes) {
    return guarded([&]() -> Result<DeviceMemory> {
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
    });
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
    (void)guarded([&]() -> Result<void> {
        auto scope = cuda::ContextScope::enter(device_.index);
        return scope ? cuda::release(data_) : scope.error();
    });
}

Result<void> DeviceMemory::upload(const void* host, std::size_t bytes) {
    return guarded([&]() -> Result<void> {
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
    });
}

Result<void> DeviceMemory::download(void* host, std::size_t bytes) const {
    return guarded([&]() -> Result<void> {
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
    });
}

Result<void> DeviceMemory::fill(std::uint8_t byte) {
    return guarded([&]() -> Result<void> {
        if (bytes_ == 0) return {};
        if (!on_cuda(device_)) {
            std::memset(data_, byte, bytes_);
            return {};
        }
        auto scope = cuda::ContextScope::enter(device_.index);
        if (!scope) return scope.error();
        if (auto done = cuda::fill_async(data_, byte, bytes_, nullptr); !done) return done;
        return cuda::synchronize_context();
    });
}

Result<void> synchronize(Device device) {
    return guarded([&]() -> Result<void> {
        if (!on_cuda(device)) return {};
        auto scope = cuda::ContextScope::enter(device.index);
        if (!scope) return scope.error();
        return cuda::synchronize_context();
    });
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

using Work = Result<void> (*)(void*);

// Number of calls that take `total_ms`, at least `least`.
int calls_for(double total_ms, double one_ms, int least) {
    constexpr double kMost = 1000;
    return std::max(least, static_cast<int>(std::min(total_ms / std::max(one_ms, 1e-3), kMost)));
}
constexpr int kEstimated = 5, kLeastTimed = 5;

Result<std::vector<double>> measure_cuda(Device device, Timer::Load load, Work work, void* user) {
    auto info = cuda::device_info(device.index);
    if (!info) return info.error();
    // Writing four times the L2 leaves nothing of the inputs in it.
    auto flush = DeviceMemory::allocate(device, std::max<std::size_t>(info->l2_bytes, 1 << 20) * 4);
    if (!flush) return flush.error();
    auto scope = cuda::ContextScope::enter(device.index);
    if (!scope) return scope.error();
    const auto flush_cache = [&] {
        return cuda::fill_async(flush->data(), 0, flush->bytes(), nullptr);
    };
    const auto record = [](void* event) { return cuda::record_event(event, nullptr); };

    if (auto done = work(user); !done) return done.error();
    auto all = EventPair::create();
    if (!all) return all.error();
    if (auto done = record(all->start()); !done) return done.error();
    for (int i = 0; i < kEstimated; ++i) {
        if (auto done = flush_cache(); !done) return done.error();
        if (auto done = work(user); !done) return done.error();
    }
    if (auto done = record(all->stop()); !done) return done.error();
    auto elapsed = cuda::elapsed_ms(all->start(), all->stop());
    if (!elapsed) return elapsed.error();
    const double one_ms = *elapsed / kEstimated;

    for (int i = calls_for(load.warm_up_ms, one_ms, 1); i > 0; --i)
        if (auto done = work(user); !done) return done.error();
    std::vector<EventPair> events;
    for (int i = calls_for(load.load_ms, one_ms, kLeastTimed); i > 0; --i) {
        auto pair = EventPair::create();
        if (!pair) return pair.error();
        events.push_back(std::move(*pair));
    }
    for (const EventPair& pair : events) {
        if (auto done = flush_cache(); !done) return done.error();
        if (auto done = record(pair.start()); !done) return done.error();
        if (auto done = work(user); !done) return done.error();
        if (auto done = record(pair.stop()); !done) return done.error();
    }
    std::vector<double> times;
    for (const EventPair& pair : events) {
        auto time = cuda::elapsed_ms(pair.start(), pair.stop());
        if (!time) return time.error();
        times.push_back(*time);
    }
    return times;
}

Result<std::vector<double>> measure_host(Timer::Load load, Work work, void* user) {
    const auto time = [&](int calls) -> Result<std::vector<double>> {
        std::vector<double> times;
        for (int i = 0; i < calls; ++i) {
            const auto start = std::chrono::steady_clock::now();
            if (auto done = work(user); !done) return done.error();
            times.push_back(
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                    .count());
        }
        return times;
    };
    if (auto first = time(1); !first) return first.error();
    auto estimated = time(kEstimated);
    if (!estimated) return estimated.error();
    const double one_ms = std::accumulate(estimated->begin(), estimated->end(), 0.0) / kEstimated;
    if (auto warm = time(calls_for(load.warm_up_ms, one_ms, 1)); !warm) return warm.error();
    return time(calls_for(load.load_ms, one_ms, kLeastTimed));
}

} // namespace

Result<std::vector<double>> Timer::measure(Device device, Load load, Result<void> (*work)(void*),
                                           void* user) {
    return guarded([&]() -> Result<std::vector<double>> {
        if (!(load.warm_up_ms >= 0) || !(load.load_ms >= 0))
            return Error{ErrorCode::invalid_option,
                         formatted("loads of {} and {} ms: expected no less than 0",
                                   load.warm_up_ms, load.load_ms)};
        return on_cuda(device) ? measure_cuda(device, load, work, user)
                               : measure_host(load, work, user);
    });
}

} // namespace flexc
