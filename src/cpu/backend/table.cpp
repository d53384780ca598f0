// The table that crosses the library's boundary. Nothing is thrown past these functions.
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>

#include "cpu/backend/attention.h"
#include "cpu/backend/jit.h"
#include "cpu/backend/threads.h"
#include "cpu/backend/tiles.h"
#include "cpu/backend_table.h"
#include "cpu/function_names.h"

namespace flexc::cpu {

struct BackendModule {
    std::unique_ptr<JitModule> code;
    TileFunctions functions{};
};

namespace {

void send(ByteSink sink, std::string_view text) {
    if (sink.write != nullptr) sink.write(sink.user, text.data(), text.size());
}

template <typename Work>
auto guarded(ByteSink error, const Work& work) noexcept -> decltype(work()) {
    try {
        return work();
    } catch (const std::bad_alloc&) {
        send(error, "out of memory");
    } catch (const std::exception& exception) {
        send(error, exception.what());
    } catch (...) {
        send(error, "an exception");
    }
    return {};
}

BackendModule* wrap(std::unique_ptr<JitModule> code, const std::string& message, ByteSink error) {
    if (code == nullptr) {
        send(error, message);
        return nullptr;
    }
    auto module = std::make_unique<BackendModule>();
    auto find = [&](const char* name) { return reinterpret_cast<TileFunction>(code->find(name)); };
    module->functions = {
        find(kForwardFunction),      find(kForwardFullFunction), find(kBackwardFunction),
        find(kBackwardFullFunction), find(kSinkFunction),        find(kSinkBackwardFunction),
        find(kBandFunction),         find(kMaskFunction),        find(kIntervalsFunction)};
    module->code = std::move(code);
    if (module->functions.forward == nullptr) {
        send(error, "the machine code has no forward function");
        return nullptr;
    }
    return module.release();
}

void describe(ByteSink out) {
    guarded(out, [&] {
        send(out, jit_description() + ", " + tiles_description() + ", " + threads_description());
        return true;
    });
}

BackendModule* compile(const char* text, std::size_t size, StopQuery stop, ByteSink object,
                       ByteSink error) {
    return guarded(error, [&] {
        std::string bytes, message;
        auto code = JitModule::compile({text, size}, stop, bytes, message);
        BackendModule* module = wrap(std::move(code), message, error);
        if (module != nullptr) send(object, bytes);
        return module;
    });
}

BackendModule* load(const char* object, std::size_t size, ByteSink error) {
    return guarded(error, [&] {
        std::string message;
        auto code = JitModule::load({object, size}, message);
        return wrap(std::move(code), message, error);
    });
}

void release(BackendModule* module) { delete module; }

void* find(BackendModule* module, const char* name) {
    return guarded({}, [&] { return module->code->find(name); });
}

std::size_t workspace_bytes(const Launch& launch) {
    return guarded({}, [&] {
        Launch sizes_only = launch;
        sizes_only.workspace = nullptr;
        return launch.backward ? backward_workspace(sizes_only) : forward_workspace(sizes_only);
    });
}

bool run_forward(BackendModule* module, const Launch& launch, ByteSink error) {
    return guarded(error, [&] {
        forward(module->functions, launch);
        return true;
    });
}

bool run_backward(BackendModule* module, const Launch& launch, ByteSink error) {
    return guarded(error, [&] {
        backward(module->functions, launch);
        return true;
    });
}

constexpr BackendTable kTable = {
    .version = kBackendVersion,
    .describe = describe,
    .default_threads = default_threads,
    .compile = compile,
    .load = load,
    .release = release,
    .find = find,
    .workspace_bytes = workspace_bytes,
    .forward = run_forward,
    .backward = run_backward,
};

} // namespace

} // namespace flexc::cpu

extern "C" __attribute__((visibility("default"))) const flexc::cpu::BackendTable*
flexc_cpu_backend() {
    return &flexc::cpu::kTable;
}
