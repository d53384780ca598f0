// Finds and opens libflexc_cpu.so, once in the life of the process.
#pragma once

#include <string>

#include "cpu/backend_table.h"
#include "flexc/result.h"
#include "support/guarded.h"

namespace flexc::cpu {

// Receives the backend's messages, as far as there is memory.
struct Received {
    std::string text;
    bool lost = false;

    ByteSink sink() {
        return {.write = [](void* user, const char* data,
                            std::size_t size) { static_cast<Received*>(user)->take(data, size); },
                .user = this};
    }
    Error failure(ErrorCode code, const char* what) const {
        // The backend reports a lack of memory in these words.
        if (lost || text == out_of_memory().message) return out_of_memory();
        return {code, what + text};
    }

  private:
    void take(const char* data, std::size_t size) noexcept {
        try {
            text.append(data, size);
        } catch (...) {
            lost = true;
        }
    }
};

struct Backend {
    const BackendTable* table = nullptr;
    std::string path;        // of the library that was opened
    std::string description; // BackendTable::describe
};

// The error lists every place that was tried. Thread-safe; a failure is tried again on the next
// call.
Result<const Backend*> backend();

} // namespace flexc::cpu
