// The CUDA driver, opened when first needed. Every call names the driver's error in its Result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "flexc/result.h"

namespace flexc::cuda {

struct DriverInfo {
    int version = 0; // 12040 is 12.4
    int device_count = 0;
    std::string path;
};
// Searches and initialises once in the life of the process.
Result<DriverInfo> driver_info();

struct DeviceInfo {
    std::string name;
    int arch = 0; // compute capability times ten
    int multiprocessors = 0;
    std::size_t memory_bytes = 0, l2_bytes = 0;
};
Result<DeviceInfo> device_info(int device);

// Makes the device's primary context current on this thread, and restores the previous one at the
// end. The primary context is retained once per device and never released.
class ContextScope {
  public:
    static Result<ContextScope> enter(int device);
    // The context that the stream belongs to, if it is another.
    static Result<ContextScope> enter(int device, void* stream);
    ContextScope(ContextScope&& other) noexcept : pushed_(other.pushed_) { other.pushed_ = false; }
    ContextScope& operator=(ContextScope&&) = delete;
    ~ContextScope();

  private:
    explicit ContextScope(bool pushed) : pushed_(pushed) {}
    bool pushed_ = false;
};

// While it exists, this thread may query events and allocate. The driver refuses both while a graph
// is captured in some other stream, and the attempt would invalidate that graph.
class UncapturedScope {
  public:
    UncapturedScope();
    UncapturedScope(const UncapturedScope&) = delete;
    UncapturedScope& operator=(const UncapturedScope&) = delete;
    ~UncapturedScope();

  private:
    int mode_;
};

// A function of a loaded module on one device.
class Function {
  public:
    // Extents of a grid (in blocks) or of a block (in threads).
    struct Dim3 {
        unsigned x = 1, y = 1, z = 1;
    };
    // Each entry of `arguments` points at one kernel argument.
    // starts_early: programmatic dependent launch; the kernel itself waits for the one ahead of it.
    Result<void> launch(Dim3 grid, Dim3 block, unsigned shared_bytes, void* stream,
                        std::span<void* const> arguments, bool starts_early = false) const;
    Result<int> registers() const;
    // Resident blocks on one multiprocessor.
    Result<int> occupancy(unsigned threads, unsigned shared_bytes) const;

  private:
    friend class Module;
    Function(void* handle, void* in_primary) : handle_(handle), in_primary_(in_primary) {}
    void* handle_;     // launches in whichever context is current
    void* in_primary_; // the same in the primary context; attributes are asked of it
};

// A loaded cubin; unloaded with its last copy unless the process is ending.
class Module {
  public:
    static Result<Module> load(int device, std::string_view cubin);
    // dynamic_shared_bytes is what launches will ask for; the function is allowed to use it.
    Result<Function> function(const std::string& name, int dynamic_shared_bytes) const;

  private:
    struct State;
    explicit Module(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
};

// Memory, streams and events of the current context.
Result<void*> allocate(std::size_t bytes);
Result<void> release(void* memory);
// Page-locked memory of the host, for copies in all contexts.
Result<void*> allocate_host(std::size_t bytes);
Result<void> release_host(void* memory);
Result<void> fill_async(void* memory, std::uint8_t byte, std::size_t bytes, void* stream);
Result<void> copy_to_device(void* to, const void* from, std::size_t bytes);
Result<void> copy_to_host(void* to, const void* from, std::size_t bytes);
Result<void> copy_to_device_async(void* to, const void* from, std::size_t bytes, void* stream);
Result<void> copy_to_host_async(void* to, const void* from, std::size_t bytes, void* stream);
// Copies within a device or between two devices of the process.
Result<void> copy_async(void* to, const void* from, std::size_t bytes, void* stream);
Result<void> synchronize_context();
Result<void> synchronize_stream(void* stream);
// Waiting blocks of a stream's kernels are scheduled before those of streams of lower priority.
enum class Priority { least, middle, greatest };
Result<void*> create_stream(Priority priority = Priority::least);
Result<void> destroy_stream(void* stream);
struct StreamState {
    std::optional<std::uint64_t> id; // no two streams of a process ever have the same
    bool is_capturing = false;       // into a graph
};
// Members that the driver cannot report keep their defaults.
StreamState stream_state(void* stream);
// Returns the device of a stream. A default stream is an error, because every device has one.
Result<int> device_of(void* stream);
Result<void*> create_event(bool is_timed = true);
Result<void> destroy_event(void* event);
Result<void> record_event(void* event, void* stream);
// Work that is submitted to the stream from now on waits for the event.
Result<void> wait_for_event(void* stream, void* event);
Result<bool> has_happened(void* event);
Result<void> synchronize_event(void* event);
Result<float> elapsed_ms(void* start, void* stop); // waits for stop

} // namespace flexc::cuda
