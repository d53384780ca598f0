#include "cuda/ptxas_log.h"

#include <algorithm>
#include <charconv>

namespace flexc::cuda {

namespace {

// The number that stands before `unit`: 24 in "Used 24 registers, 16 bytes spill stores".
int number_before(std::string_view line, std::string_view unit) {
    std::size_t end = line.find(unit);
    if (end == std::string_view::npos) return 0;
    while (end > 0 && line[end - 1] == ' ')
        --end;
    std::size_t begin = end;
    while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9')
        --begin;
    int value = 0;
    std::from_chars(line.data() + begin, line.data() + end, value);
    return value;
}

std::string_view between(std::string_view line, std::string_view before, std::string_view after) {
    const std::size_t start = line.find(before);
    if (start == std::string_view::npos) return {};
    line.remove_prefix(start + before.size());
    return line.substr(0, line.find(after));
}

} // namespace

std::vector<KernelUsage> parse_ptxas_log(std::string_view log) {
    std::vector<KernelUsage> kernels;
    bool serialised = false;
    bool in_kernel = false; // lines on device functions have the same form, and are not wanted
    while (!log.empty()) {
        const std::size_t end = log.find('\n');
        const std::string_view line = log.substr(0, end);
        log.remove_prefix(end == std::string_view::npos ? log.size() : end + 1);

        // Warnings C7508 to C7518 are about wgmma and setmaxnreg that ptxas could not compile as
        // written; C7519 is about an instruction that it added, which costs nothing.
        serialised |= line.find("(C75") != std::string_view::npos &&
                      line.find("(C7519)") == std::string_view::npos;
        if (line.find("Compiling entry function") != std::string_view::npos) {
            kernels.push_back({.name = std::string(between(line, "function '", "'"))});
            in_kernel = true;
        } else if (line.find("Function properties for") != std::string_view::npos) {
            const std::string_view name = between(line, "properties for ", "\n");
            in_kernel = !kernels.empty() && name == kernels.back().name;
        } else if (kernels.empty()) {
            continue;
        } else if (in_kernel && line.find("stack frame") != std::string_view::npos) {
            kernels.back().stack_bytes = number_before(line, "bytes stack frame");
            kernels.back().spill_store_bytes = number_before(line, "bytes spill stores");
            kernels.back().spill_load_bytes = number_before(line, "bytes spill loads");
        } else if (line.find("Used ") != std::string_view::npos) {
            kernels.back().registers = number_before(line, "registers");
            kernels.back().shared_bytes = number_before(line, "bytes smem");
        }
    }
    for (KernelUsage& kernel : kernels)
        kernel.serialised = serialised;
    return kernels;
}

KernelUsage usage_of(std::span<const KernelUsage> kernels, std::string_view name) {
    const auto own = std::ranges::find(kernels, name, &KernelUsage::name);
    if (own != kernels.end()) return *own;
    KernelUsage most{.name = std::string(name)};
    for (const KernelUsage& kernel : kernels) {
        most.registers = std::max(most.registers, kernel.registers);
        most.stack_bytes = std::max(most.stack_bytes, kernel.stack_bytes);
        most.spill_store_bytes = std::max(most.spill_store_bytes, kernel.spill_store_bytes);
        most.spill_load_bytes = std::max(most.spill_load_bytes, kernel.spill_load_bytes);
        most.shared_bytes = std::max(most.shared_bytes, kernel.shared_bytes);
        most.serialised |= kernel.serialised;
    }
    return most;
}

} // namespace flexc::cuda
