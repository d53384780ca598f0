// What a backend gives the runtime: compiled code for one program, types and device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/arguments.h"
#include "flexc/kernel.h"
#include "flexc/result.h"

namespace flexc::runtime {

// Memory that must be zero before a backward pass adds into it.
struct ZeroRange {
    void* data = nullptr;
    std::size_t bytes = 0;
};

struct Call {
    AttentionArguments attention;
    std::span<const std::uint64_t> mod_arguments; // in argument_slots order
    std::span<const ZeroRange> zero;              // before the kernels; backward only
    Workspace workspace;
    Stream stream;
};

class Executable {
  public:
    virtual ~Executable() = default;

    virtual Result<void> forward(const Call& call) const = 0;
    virtual Result<void> backward(const Call& call) const = 0;
    virtual std::size_t workspace_bytes(const Sizes& sizes) const = 0;

    // Where generated code reports reads outside a buffer; null when it does not.
    virtual void* out_of_range_flag() const = 0;
    virtual Result<bool> take_out_of_range() const = 0; // reads and clears; waits for the device
    virtual std::span<const KernelInfo> kernels() const = 0;
};

} // namespace flexc::runtime
