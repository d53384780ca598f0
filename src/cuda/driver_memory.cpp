// Memory, streams and events.
#include "cuda/driver.h"
#include "cuda/driver_api.h"

namespace flexc::cuda {

namespace {

DevicePointer address(const void* memory) { return reinterpret_cast<DevicePointer>(memory); }

// Calls one entry point of the driver.
template <typename Member, typename... Arguments>
Result<void> call(Member member, const char* what, Arguments... arguments) {
    const Result<DriverApi>& api = driver_api();
    if (!api) return api.error();
    return checked(*api, ((*api).*member)(arguments...), what);
}

} // namespace

Result<void*> allocate(std::size_t bytes) {
    DevicePointer memory = 0;
    if (auto done = call(&DriverApi::allocate, "cuMemAlloc", &memory, bytes); !done)
        return done.error();
    return reinterpret_cast<void*>(memory);
}

Result<void> release(void* memory) {
    return call(&DriverApi::release, "cuMemFree", address(memory));
}

Result<void*> allocate_host(std::size_t bytes) {
    constexpr unsigned kPortable = 1;
    void* memory = nullptr;
    if (auto done = call(&DriverApi::allocate_host, "cuMemHostAlloc", &memory, bytes, kPortable);
        !done)
        return done.error();
    return memory;
}

Result<void> release_host(void* memory) {
    return call(&DriverApi::release_host, "cuMemFreeHost", memory);
}

Result<void> fill_async(void* memory, std::uint8_t byte, std::size_t bytes, void* stream) {
    if (bytes == 0) return {};
    return call(&DriverApi::fill, "cuMemsetD8Async", address(memory), byte, bytes, stream);
}

Result<void> copy_to_device(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return {};
    return call(&DriverApi::to_device, "cuMemcpyHtoD", address(to), from, bytes);
}

Result<void> copy_to_host(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return {};
    return call(&DriverApi::to_host, "cuMemcpyDtoH", to, address(from), bytes);
}

Result<void> copy_to_device_async(void* to, const void* from, std::size_t bytes, void* stream) {
    if (bytes == 0) return {};
    return call(&DriverApi::to_device_async, "cuMemcpyHtoDAsync", address(to), from, bytes, stream);
}

Result<void> copy_to_host_async(void* to, const void* from, std::size_t bytes, void* stream) {
    if (bytes == 0) return {};
    return call(&DriverApi::to_host_async, "cuMemcpyDtoHAsync", to, address(from), bytes, stream);
}

Result<void> copy_async(void* to, const void* from, std::size_t bytes, void* stream) {
    if (bytes == 0) return {};
    return call(&DriverApi::copy, "cuMemcpyAsync", address(to), address(from), bytes, stream);
}

Result<void> synchronize_context() {
    return call(&DriverApi::context_synchronize, "cuCtxSynchronize");
}

Result<void> synchronize_stream(void* stream) {
    return call(&DriverApi::stream_synchronize, "cuStreamSynchronize", stream);
}

Result<void*> create_stream(Priority priority) {
    int least = 0, greatest = 0;
    if (auto done =
            call(&DriverApi::priority_range, "cuCtxGetStreamPriorityRange", &least, &greatest);
        !done)
        return done.error();
    void* stream = nullptr;
    constexpr unsigned kNonBlocking = 1;
    const int number = priority == Priority::least    ? least
                       : priority == Priority::middle ? (least + greatest) / 2
                                                      : greatest;
    if (auto done = call(&DriverApi::stream_create, "cuStreamCreateWithPriority", &stream,
                         kNonBlocking, number);
        !done)
        return done.error();
    return stream;
}

Result<void> destroy_stream(void* stream) {
    return call(&DriverApi::stream_destroy, "cuStreamDestroy", stream);
}

StreamState stream_state(void* stream) {
    StreamState state;
    const Result<DriverApi>& api = driver_api();
    if (!api) return state;
    int capturing = 0;
    if (api->stream_capturing != nullptr &&
        api->stream_capturing(stream, &capturing) == kDriverSuccess)
        state.is_capturing = capturing != 0;
    unsigned long long id = 0;
    if (!state.is_capturing && api->stream_id != nullptr &&
        api->stream_id(stream, &id) == kDriverSuccess)
        state.id = id;
    return state;
}

UncapturedScope::UncapturedScope() {
    constexpr int kRelaxed = 2;
    mode_ = kRelaxed;
    // The call only swaps the calling thread's capture mode, so its result is not needed.
    if (driver_api()) (*driver_api()).exchange_capture_mode(&mode_);
}

UncapturedScope::~UncapturedScope() {
    if (driver_api()) (*driver_api()).exchange_capture_mode(&mode_);
}

Result<int> device_of(void* stream) {
    auto scope = ContextScope::enter(0, stream);
    if (!scope) return scope.error();
    int device = 0;
    if (auto done = call(&DriverApi::context_device, "cuCtxGetDevice", &device); !done)
        return done.error();
    return device;
}

Result<void*> create_event(bool is_timed) {
    void* event = nullptr;
    constexpr unsigned kDisableTiming = 2;
    if (auto done =
            call(&DriverApi::event_create, "cuEventCreate", &event, is_timed ? 0 : kDisableTiming);
        !done)
        return done.error();
    return event;
}

Result<void> destroy_event(void* event) {
    return call(&DriverApi::event_destroy, "cuEventDestroy", event);
}

Result<void> record_event(void* event, void* stream) {
    return call(&DriverApi::event_record, "cuEventRecord", event, stream);
}

Result<void> wait_for_event(void* stream, void* event) {
    return call(&DriverApi::stream_wait, "cuStreamWaitEvent", stream, event, 0u);
}

Result<bool> has_happened(void* event) {
    const Result<DriverApi>& api = driver_api();
    if (!api) return api.error();
    const int status = api->event_query(event);
    if (status == kDriverNotReady) return false;
    if (auto done = checked(*api, status, "cuEventQuery"); !done) return done.error();
    return true;
}

Result<void> synchronize_event(void* event) {
    return call(&DriverApi::event_synchronize, "cuEventSynchronize", event);
}

Result<float> elapsed_ms(void* start, void* stop) {
    if (auto done = synchronize_event(stop); !done) return done.error();
    float milliseconds = 0;
    if (auto done =
            call(&DriverApi::event_elapsed, "cuEventElapsedTime", &milliseconds, start, stop);
        !done)
        return done.error();
    return milliseconds;
}

} // namespace flexc::cuda
