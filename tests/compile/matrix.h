// Which kernels the compile test builds, and what it wrote down about each.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "compile/kernels.h"

namespace flexc::test {

// Chosen so that two cores need about two minutes: all templates on all architectures, all types
// and many head dims on one, and some mods of the library.
std::vector<KernelCase> compile_matrix();
// Every mod of the library, D 64 and 128, forward and backward: the kernels that are chosen on
// sm_90a, and those of sm_80.
std::vector<KernelCase> library_matrix();

// "fused sm_90a bf16 64x64 alibi": what a case is called in the record.
std::string name_of(const KernelCase& one);

struct Usage {
    int registers = 0;
    int shared_bytes = 0; // static and dynamic
    int spill_bytes = 0;
    friend bool operator==(const Usage&, const Usage&) = default;
};

// The reviewed file: which NVRTC it is of, and one line a kernel.
struct Record {
    std::string version; // "13.0"
    std::map<std::string, Usage> kernels;
};
Record read_record(const std::string& path);
bool write_record(const std::string& path, const Record& record);

} // namespace flexc::test
