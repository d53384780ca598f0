// The driver's entry points, with our own prototypes, so that no CUDA header is needed to build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "flexc/result.h"

namespace flexc::cuda {

using DevicePointer = std::uint64_t;

enum DeviceAttribute : int {
    kMultiprocessors = 16,
    kL2Bytes = 38,
    kMajor = 75,
    kMinor = 76,
};
enum FunctionAttribute : int {
    kRegisters = 4,
    kMaxDynamicShared = 8,
};
inline constexpr int kDriverSuccess = 0;
inline constexpr int kDriverNotReady = 600;

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
    int id = 0;
    alignas(8) int value = 0;
    char rest[60] = {}; // of a union of 64 bytes
};
inline constexpr int kProgrammaticStreamSerialization = 6;
struct LaunchConfig {
    unsigned grid[3] = {1, 1, 1}, threads[3] = {1, 1, 1};
    unsigned shared_bytes = 0;
    void* stream = nullptr;
    const LaunchAttribute* attributes = nullptr;
    unsigned attribute_count = 0;
};

// FLEXC_DRIVER(member, symbol, parameters); symbols carry the version that these parameters are of.
#define FLEXC_DRIVER_FUNCTIONS(FLEXC_DRIVER)                                                       \
    FLEXC_DRIVER(init, "cuInit", (unsigned))                                                       \
    FLEXC_DRIVER(driver_version, "cuDriverGetVersion", (int*))                                     \
    FLEXC_DRIVER(error_name, "cuGetErrorName", (int, const char**))                                \
    FLEXC_DRIVER(error_string, "cuGetErrorString", (int, const char**))                            \
    FLEXC_DRIVER(device_count, "cuDeviceGetCount", (int*))                                         \
    FLEXC_DRIVER(device_get, "cuDeviceGet", (int*, int))                                           \
    FLEXC_DRIVER(device_name, "cuDeviceGetName", (char*, int, int))                                \
    FLEXC_DRIVER(device_memory, "cuDeviceTotalMem_v2", (std::size_t*, int))                        \
    FLEXC_DRIVER(device_attribute, "cuDeviceGetAttribute", (int*, int, int))                       \
    FLEXC_DRIVER(primary_retain, "cuDevicePrimaryCtxRetain", (void**, int))                        \
    FLEXC_DRIVER(context_push, "cuCtxPushCurrent_v2", (void*))                                     \
    FLEXC_DRIVER(context_pop, "cuCtxPopCurrent_v2", (void**))                                      \
    FLEXC_DRIVER(context_current, "cuCtxGetCurrent", (void**))                                     \
    FLEXC_DRIVER(context_device, "cuCtxGetDevice", (int*))                                         \
    FLEXC_DRIVER(context_synchronize, "cuCtxSynchronize", ())                                      \
    FLEXC_DRIVER(module_load, "cuModuleLoadData", (void**, const void*))                           \
    FLEXC_DRIVER(module_unload, "cuModuleUnload", (void*))                                         \
    FLEXC_DRIVER(module_function, "cuModuleGetFunction", (void**, void*, const char*))             \
    FLEXC_DRIVER(function_get, "cuFuncGetAttribute", (int*, int, void*))                           \
    FLEXC_DRIVER(function_set, "cuFuncSetAttribute", (void*, int, int))                            \
    FLEXC_DRIVER(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor",                         \
                 (int*, void*, int, std::size_t))                                                  \
    FLEXC_DRIVER(launch, "cuLaunchKernel",                                                         \
                 (void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,     \
                  void*, void**, void**))                                                          \
    FLEXC_DRIVER(allocate, "cuMemAlloc_v2", (DevicePointer*, std::size_t))                         \
    FLEXC_DRIVER(release, "cuMemFree_v2", (DevicePointer))                                         \
    FLEXC_DRIVER(allocate_host, "cuMemHostAlloc", (void**, std::size_t, unsigned))                 \
    FLEXC_DRIVER(release_host, "cuMemFreeHost", (void*))                                           \
    FLEXC_DRIVER(fill, "cuMemsetD8Async", (DevicePointer, unsigned char, std::size_t, void*))      \
    FLEXC_DRIVER(to_device, "cuMemcpyHtoD_v2", (DevicePointer, const void*, std::size_t))          \
    FLEXC_DRIVER(to_host, "cuMemcpyDtoH_v2", (void*, DevicePointer, std::size_t))                  \
    FLEXC_DRIVER(to_device_async, "cuMemcpyHtoDAsync_v2",                                          \
                 (DevicePointer, const void*, std::size_t, void*))                                 \
    FLEXC_DRIVER(to_host_async, "cuMemcpyDtoHAsync_v2",                                            \
                 (void*, DevicePointer, std::size_t, void*))                                       \
    FLEXC_DRIVER(copy, "cuMemcpyAsync", (DevicePointer, DevicePointer, std::size_t, void*))        \
    FLEXC_DRIVER(priority_range, "cuCtxGetStreamPriorityRange", (int*, int*))                      \
    FLEXC_DRIVER(stream_create, "cuStreamCreateWithPriority", (void**, unsigned, int))             \
    FLEXC_DRIVER(stream_destroy, "cuStreamDestroy_v2", (void*))                                    \
    FLEXC_DRIVER(stream_synchronize, "cuStreamSynchronize", (void*))                               \
    FLEXC_DRIVER(stream_context, "cuStreamGetCtx", (void*, void**))                                \
    FLEXC_DRIVER(stream_wait, "cuStreamWaitEvent", (void*, void*, unsigned))                       \
    FLEXC_DRIVER(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", (int*))               \
    FLEXC_DRIVER(event_create, "cuEventCreate", (void**, unsigned))                                \
    FLEXC_DRIVER(event_destroy, "cuEventDestroy_v2", (void*))                                      \
    FLEXC_DRIVER(event_record, "cuEventRecord", (void*, void*))                                    \
    FLEXC_DRIVER(event_query, "cuEventQuery", (void*))                                             \
    FLEXC_DRIVER(event_synchronize, "cuEventSynchronize", (void*))                                 \
    FLEXC_DRIVER(event_elapsed, "cuEventElapsedTime", (float*, void*, void*))

struct DriverApi {
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define FLEXC_DRIVER(member, symbol, parameters) int(*member) parameters = nullptr;
    FLEXC_DRIVER_FUNCTIONS(FLEXC_DRIVER)
#undef FLEXC_DRIVER
    // Loading without a context, CUDA 12.0 and later; all of them or none.
    int (*library_load)(void**, const void*, void*, void*, unsigned, void*, void*,
                        unsigned) = nullptr;
    int (*library_unload)(void*) = nullptr;
    int (*library_kernel)(void**, void*, const char*) = nullptr;
    int (*kernel_set)(int, int, void*, int) = nullptr;
    int (*kernel_function)(void**, void*) = nullptr;
    // Both may be missing in drivers before CUDA 12.0.
    int (*stream_id)(void*, unsigned long long*) = nullptr;
    int (*stream_capturing)(void*, int*) = nullptr;
    // Launch with attributes; CUDA 11.8 and later.
    int (*launch_with)(const LaunchConfig*, void*, void**, void**) = nullptr;
    // Encodes a tensor map for TMA; CUDA 12.0 and later.
    int (*tensor_map)(void* map, int type, std::uint32_t rank, void* data,
                      const std::uint64_t* dims, const std::uint64_t* strides,
                      const std::uint32_t* box, const std::uint32_t* steps, int interleave,
                      int swizzle, int promotion, int fill) = nullptr;

    std::string path;
    int version = 0;
    int devices = 0;

    bool has_libraries() const { return kernel_function != nullptr; }
};

// The driver is opened and initialised once.
const Result<DriverApi>& driver_api();

// Success, or the driver's own words about what failed.
Result<void> checked(const DriverApi& api, int status, const char* what);

Error no_such_device(const DriverApi& api, int device);

// The device's primary context, retained once.
Result<void*> primary_context(const DriverApi& api, int device);

} // namespace flexc::cuda
