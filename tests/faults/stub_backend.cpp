// A CPU backend that compiles nothing and does nothing, and allocates nothing of its own.
#include <cstring>

#include "cpu/backend_table.h"

namespace flexc::cpu {

struct BackendModule {};

namespace {

BackendModule kModule;

void send(ByteSink sink, const char* text) {
    if (sink.write != nullptr) sink.write(sink.user, text, std::strlen(text));
}

const BackendTable kTable = {
    .describe = [](ByteSink out) { send(out, "a backend that stands in for the real one"); },
    .default_threads = [] { return 2; },
    .compile =
        [](const char*, std::size_t, StopQuery, ByteSink object, ByteSink) {
            send(object, "an object that is long enough to need memory of its own");
            return &kModule;
        },
    .load = [](const char*, std::size_t, ByteSink) { return &kModule; },
    .release = [](BackendModule*) {},
    .find = [](BackendModule*, const char*) -> void* { return nullptr; },
    .workspace_bytes = [](const Launch&) { return std::size_t{64}; },
    .forward = [](BackendModule*, const Launch&, ByteSink) { return true; },
    .backward =
        [](BackendModule*, const Launch&, ByteSink error) {
            send(error, "an error that is long enough to need memory of its own");
            return false;
        },
};

} // namespace
} // namespace flexc::cpu

extern "C" __attribute__((visibility("default"))) const flexc::cpu::BackendTable*
flexc_cpu_backend() {
    return &flexc::cpu::kTable;
}
