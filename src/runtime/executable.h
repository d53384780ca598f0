// What a backend gives the runtime: compiled code for one program, types and device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/arguments.h"
#include "flexc/kernel.h"
#include "flexc/result.h"

namespace flexc::runtime {

struct Call {
    AttentionArguments attention{};
    std::span<const std::uint64_t> words; // in argument_slots order
    // Backward: one per buffer of the program, f32, contiguous; empty views for those without.
    std::span<const TensorView> gradients;
    bool accumulate_gradients = false; // add to what gradients hold, instead of replacing it
    Workspace workspace;
    Stream stream;
    void* map = nullptr; // map_bytes() long, where masks need one
};

class Executable {
  public:
    virtual ~Executable() = default;

    virtual Result<void> forward(const Call& call) const = 0;
    virtual Result<void> backward(const Call& call) const = 0;
    // f32 to another real type, contiguous, after earlier work on the stream.
    virtual Result<void> round(const TensorView& from, const TensorView& to,
                               Stream stream) const = 0;
    // Reads sizes and the shapes of gradients, no pointers.
    virtual std::size_t workspace_bytes(const Call& call, bool backward) const = 0;

    // Memory for the maps of tiles that the mask shows; 0 where ranges in the kernels do. Reads
    // sizes, no pointers.
    virtual std::size_t map_bytes(const Call&) const { return 0; }
    virtual Result<std::shared_ptr<void>> allocate_map(std::size_t bytes) const = 0;
    // Fills call.map, from what the mask reads, before later work on the stream.
    virtual Result<void> build_map(const Call&) const { return {}; }

    // Where generated code reports reads outside a buffer; null when it does not.
    virtual void* out_of_range_flag() const = 0;
    virtual Result<bool> take_out_of_range() const = 0; // reads and clears; waits for the device
    virtual std::span<const KernelInfo> kernels() const = 0;
};

} // namespace flexc::runtime
