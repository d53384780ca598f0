// Finds and opens libflexc_cpu.so, once in the life of the process.
#pragma once

#include <string>

#include "cpu/backend_table.h"
#include "flexc/result.h"

namespace flexc::cpu {

struct Backend {
    const BackendTable* table = nullptr;
    std::string path;        // of the library that was opened
    std::string description; // BackendTable::describe
};

// The error lists every place that was tried. Thread-safe; a failure is tried again on the next
// call.
Result<const Backend*> backend();

} // namespace flexc::cpu
