#include "cuda/driver.h"

#include <array>
#include <vector>

#include "cuda/driver_api.h"

namespace flexc::cuda {

Result<DriverInfo> driver_info() {
    const Result<DriverApi>& api = driver_api();
    if (!api) return api.error();
    return DriverInfo{.version = api->version, .device_count = api->devices, .path = api->path};
}

Result<DeviceInfo> device_info(int device) {
    const Result<DriverApi>& api = driver_api();
    if (!api) return api.error();
    if (device < 0 || device >= api->devices) return no_such_device(*api, device);
    int handle = 0;
    if (auto done = checked(*api, api->device_get(&handle, device), "cuDeviceGet"); !done)
        return done.error();
    DeviceInfo info;
    std::array<char, 256> name{};
    if (auto done = checked(*api, api->device_name(name.data(), name.size() - 1, handle),
                            "cuDeviceGetName");
        !done)
        return done.error();
    info.name = name.data();
    if (auto done =
            checked(*api, api->device_memory(&info.memory_bytes, handle), "cuDeviceTotalMem");
        !done)
        return done.error();
    int major = 0, minor = 0, l2 = 0;
    const std::array<std::pair<int, int*>, 4> attributes = {
        {{kMajor, &major},
         {kMinor, &minor},
         {kMultiprocessors, &info.multiprocessors},
         {kL2Bytes, &l2}}};
    for (const auto& [attribute, value] : attributes)
        if (auto done = checked(*api, api->device_attribute(value, attribute, handle),
                                "cuDeviceGetAttribute");
            !done)
            return done.error();
    info.arch = 10 * major + minor;
    info.l2_bytes = static_cast<std::size_t>(l2);
    return info;
}

namespace {

// Makes the context current unless it is; returns whether that was needed. A push costs more than a
// query, and most callers already have the context current.
Result<bool> push_unless_current(const DriverApi& api, void* context) {
    void* current = nullptr;
    if (api.context_current(&current) == kDriverSuccess && current == context) return false;
    if (auto done = checked(api, api.context_push(context), "cuCtxPushCurrent"); !done)
        return done.error();
    return true;
}

// 0, 1 and 2 stand for the default streams, which every context has.
bool is_default(void* stream) { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

} // namespace

Result<ContextScope> ContextScope::enter(int device) {
    const Result<DriverApi>& api = driver_api();
    if (!api) return api.error();
    auto context = primary_context(*api, device);
    if (!context) return context.error();
    auto pushed = push_unless_current(*api, *context);
    if (!pushed) return pushed.error();
    return ContextScope(*pushed);
}

Result<ContextScope> ContextScope::enter(int device, void* stream) {
    if (is_default(stream)) return enter(device);
    const Result<DriverApi>& api = driver_api();
    if (!api) return api.error();
    void* context = nullptr;
    if (auto done = checked(*api, api->stream_context(stream, &context), "cuStreamGetCtx"); !done)
        return done.error();
    auto pushed = push_unless_current(*api, context);
    if (!pushed) return pushed.error();
    return ContextScope(*pushed);
}

ContextScope::~ContextScope() {
    void* popped = nullptr;
    if (pushed_) (*driver_api()).context_pop(&popped);
}

Result<void> Function::launch(Dim3 grid, Dim3 block, unsigned shared_bytes, void* stream,
                              std::span<void* const> arguments, bool starts_early) const {
    const Result<DriverApi>& api = driver_api();
    if (!api) return api.error();
    if (starts_early && api->launch_with != nullptr) {
        const LaunchAttribute early{.id = kProgrammaticStreamSerialization, .value = 1};
        const LaunchConfig config{.grid = {grid.x, grid.y, grid.z},
                                  .threads = {block.x, block.y, block.z},
                                  .shared_bytes = shared_bytes,
                                  .stream = stream,
                                  .attributes = &early,
                                  .attribute_count = 1};
        return checked(
            *api, api->launch_with(&config, handle_, const_cast<void**>(arguments.data()), nullptr),
            "cuLaunchKernelEx");
    }
    // The driver reads the array only, although its prototype does not say so.
    return checked(*api,
                   api->launch(handle_, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                               shared_bytes, stream, const_cast<void**>(arguments.data()), nullptr),
                   "cuLaunchKernel");
}

namespace {

Result<int> function_attribute(void* function, int attribute) {
    const Result<DriverApi>& api = driver_api();
    if (!api) return api.error();
    int value = 0;
    if (auto done =
            checked(*api, api->function_get(&value, attribute, function), "cuFuncGetAttribute");
        !done)
        return done.error();
    return value;
}

} // namespace

Result<int> Function::registers() const { return function_attribute(in_primary_, kRegisters); }

Result<int> Function::occupancy(unsigned threads, unsigned shared_bytes) const {
    const Result<DriverApi>& api = driver_api();
    if (!api) return api.error();
    int blocks = 0;
    if (auto done = checked(
            *api, api->occupancy(&blocks, in_primary_, static_cast<int>(threads), shared_bytes),
            "cuOccupancyMaxActiveBlocksPerMultiprocessor");
        !done)
        return done.error();
    return blocks;
}

struct Module::State {
    int device = 0;
    bool is_library = false; // loaded by cuLibraryLoadData
    void* handle = nullptr;

    State() = default;
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
        // When a process ends, the driver may already be gone; it has then freed everything.
        const Result<DriverApi>& api = driver_api();
        if (handle == nullptr || !api) return;
        if (is_library) {
            api->library_unload(handle);
        } else if (auto scope = ContextScope::enter(device)) {
            api->module_unload(handle);
        }
    }
};

Result<Module> Module::load(int device, std::string_view cubin) {
    const Result<DriverApi>& api = driver_api();
    if (!api) return api.error();
    auto scope = ContextScope::enter(device);
    if (!scope) return scope.error();
    auto state = std::make_shared<State>();
    state->device = device;
    state->is_library = api->has_libraries();
    const int status = state->is_library ? api->library_load(&state->handle, cubin.data(), nullptr,
                                                             nullptr, 0, nullptr, nullptr, 0)
                                         : api->module_load(&state->handle, cubin.data());
    const char* what = state->is_library ? "cuLibraryLoadData" : "cuModuleLoadData";
    if (auto done = checked(*api, status, what); !done) {
        state->handle = nullptr;
        return done.error();
    }
    return Module(std::move(state));
}

Result<Function> Module::function(const std::string& name, int dynamic_shared_bytes) const {
    const Result<DriverApi>& api = driver_api();
    if (!api) return api.error();
    auto scope = ContextScope::enter(state_->device);
    if (!scope) return scope.error();
    const auto allow_shared = [&](auto set) -> Result<void> {
        if (dynamic_shared_bytes <= 0) return {};
        return checked(*api, set(), "asking for dynamic shared memory");
    };
    void* function = nullptr;
    if (!state_->is_library) {
        if (auto done = checked(*api, api->module_function(&function, state_->handle, name.c_str()),
                                "cuModuleGetFunction");
            !done)
            return done.error();
        if (auto done = allow_shared([&] {
                return api->function_set(function, kMaxDynamicShared, dynamic_shared_bytes);
            });
            !done)
            return done.error();
        return Function(function, function);
    }
    void* kernel = nullptr;
    if (auto done = checked(*api, api->library_kernel(&kernel, state_->handle, name.c_str()),
                            "cuLibraryGetKernel");
        !done)
        return done.error();
    int device = 0;
    if (auto done = checked(*api, api->device_get(&device, state_->device), "cuDeviceGet"); !done)
        return done.error();
    if (auto done = allow_shared([&] {
            return api->kernel_set(kMaxDynamicShared, dynamic_shared_bytes, kernel, device);
        });
        !done)
        return done.error();
    if (auto done = checked(*api, api->kernel_function(&function, kernel), "cuKernelGetFunction");
        !done)
        return done.error();
    return Function(kernel, function);
}

} // namespace flexc::cuda
