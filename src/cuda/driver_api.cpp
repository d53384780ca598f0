#include "cuda/driver_api.h"

#include <map>
#include <mutex>

#include "support/dynlib.h"
#include "support/text.h"

namespace flexc::cuda {

namespace {

std::string bind(const support::DynamicLibrary& library, DriverApi& api) {
// NOLINTBEGIN(bugprone-macro-parentheses)
#define FLEXC_DRIVER(member, name, parameters)                                                     \
    if (!library.symbol(name, api.member)) return std::string("has no ") + name;
    FLEXC_DRIVER_FUNCTIONS(FLEXC_DRIVER)
#undef FLEXC_DRIVER
    // NOLINTEND(bugprone-macro-parentheses)
    if (!library.symbol("cuLibraryLoadData", api.library_load) ||
        !library.symbol("cuLibraryUnload", api.library_unload) ||
        !library.symbol("cuLibraryGetKernel", api.library_kernel) ||
        !library.symbol("cuKernelSetAttribute", api.kernel_set) ||
        !library.symbol("cuKernelGetFunction", api.kernel_function))
        api.kernel_function = nullptr;
    library.symbol("cuStreamGetId", api.stream_id);
    library.symbol("cuStreamIsCapturing", api.stream_capturing);
    library.symbol("cuLaunchKernelEx", api.launch_with);
    library.symbol("cuTensorMapEncodeTiled", api.tensor_map);
    return "";
}

Result<DriverApi> open_driver() {
    DriverApi api;
    // Never libcuda.so: that one is for linking, and may be a stub.
    const support::LibrarySearch search = support::find_library(
        {.name = "the CUDA driver",
         .exact_path = support::Variable::libcuda,
         .loaded_prefix = "libcuda.so.1",
         .sonames = {"libcuda.so.1"},
         .patterns = {"/usr/lib/*-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1",
                      "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"},
         .objection = [&](const support::DynamicLibrary& library) { return bind(library, api); }});
    if (!search)
        return Error{ErrorCode::library_missing,
                     "the CUDA driver (libcuda.so.1) was not found. It comes with NVIDIA's GPU "
                     "driver. Tried:\n" +
                         search.describe()};
    api.path = search.library->path();
    if (auto done = checked(api, api.init(0), "cuInit"); !done) return done.error();
    if (auto done = checked(api, api.driver_version(&api.version), "cuDriverGetVersion"); !done)
        return done.error();
    if (auto done = checked(api, api.device_count(&api.devices), "cuDeviceGetCount"); !done)
        return done.error();
    return api;
}

} // namespace

const Result<DriverApi>& driver_api() {
    // Never destroyed: static objects may end their kernels and streams while the process ends.
    static const auto& kApi = *new Result<DriverApi>(open_driver());
    return kApi;
}

Result<void> checked(const DriverApi& api, int status, const char* what) {
    if (status == kDriverSuccess) return {};
    const char* name = nullptr;
    const char* text = nullptr;
    api.error_name(status, &name);
    api.error_string(status, &text);
    return Error{ErrorCode::device,
                 formatted("{} failed: {} ({})", what, name == nullptr ? "unknown error" : name,
                           text == nullptr ? std::to_string(status) : std::string(text))};
}

Error no_such_device(const DriverApi& api, int device) {
    return {ErrorCode::invalid_option,
            formatted("there is no CUDA device {}: {} found", device, api.devices)};
}

Result<void*> primary_context(const DriverApi& api, int device) {
    // Leaked on purpose: other static objects may still launch while the process ends.
    struct Contexts {
        std::mutex mutex;
        std::map<int, void*> of_device;
    };
    static Contexts* const kContexts = new Contexts;
    if (device < 0 || device >= api.devices) return no_such_device(api, device);
    const std::lock_guard lock(kContexts->mutex);
    const auto found = kContexts->of_device.find(device);
    if (found != kContexts->of_device.end()) return found->second;
    int handle = 0;
    if (auto done = checked(api, api.device_get(&handle, device), "cuDeviceGet"); !done)
        return done.error();
    void* context = nullptr;
    if (auto done = checked(api, api.primary_retain(&context, handle), "cuDevicePrimaryCtxRetain");
        !done)
        return done.error();
    kContexts->of_device[device] = context;
    return context;
}

} // namespace flexc::cuda
