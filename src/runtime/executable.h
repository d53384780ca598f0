// What a backend gives the runtime: compiled code for one program, types and device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/arguments.h"
#include "common/length_arrays.h"
#include "common/sequences.h"
#include "flexc/kernel.h"
#include "flexc/result.h"

namespace flexc::runtime {

enum class Pass : std::uint8_t { forward, backward };

// Which variant of each pass the calls of a plan get.
struct PassVariants {
    std::size_t forward = 0, backward = 0;
};

struct Call {
    AttentionArguments attention{};
    // Null: dense. Else the lengths of `attention` are the most that a request may have.
    const SequenceArguments* sequences = nullptr;
    std::span<const std::uint64_t> words; // in argument_slots order
    // Backward: one per buffer of the program, f32, contiguous; empty views for those without.
    std::span<const TensorView> gradients;
    // Where those go in another type, contiguous; empty views for others.
    std::span<const TensorView> rounded_gradients;
    bool accumulate_gradients = false; // add to what gradients hold, instead of replacing it
    CpuThreads cpu_threads;
    Workspace workspace;
    Stream stream;
    void* block_mask = nullptr; // block_mask_bytes() long, where masks need one
    PassVariants variants;
};

class Executable {
  public:
    virtual ~Executable() = default;

    // Those that calls like these can get, compiled if need be. `backward` is null without one.
    virtual Result<PassVariants> choose(const Call&, const Call* /*backward*/) const {
        return PassVariants{};
    }

    virtual Result<void> forward(const Call& call) const = 0;
    virtual Result<void> backward(const Call& call) const = 0;
    // Reads sizes and the shapes of gradients, no pointers.
    virtual std::size_t workspace_bytes(const Call& call, bool backward) const = 0;

    // Whether calls may need block masks.
    virtual bool has_block_masks() const { return false; }
    // Memory for block masks; 0 where kernels know the tiles that the mask shows as ranges. Reads
    // sizes, no pointers.
    virtual std::size_t block_mask_bytes(const Call&) const { return 0; }
    // Fills call.block_mask, from what the mask reads, before later work on the stream: for both
    // passes, or for one.
    virtual Result<void> build_block_mask(const Call&, std::optional<Pass>) const { return {}; }

    // What a plan owns of the device's memory.
    virtual Result<std::shared_ptr<void>> allocate_for_plan(std::size_t bytes) const = 0;
    // Whether launches read where requests lie from such memory; copy_for_plan() writes it, one
    // piece behind the other, before later work on the stream.
    virtual bool reads_sequences_of_plan() const { return false; }
    virtual Result<void> copy_for_plan(void* /*to*/,
                                       std::span<const std::span<const std::byte>> /*pieces*/,
                                       Stream) const {
        return {};
    }
    // The same from arrays in the device's memory; may be captured in a graph.
    virtual Result<void> read_lengths(const LengthArrays&, const SequenceRecords& /*to*/,
                                      Stream) const {
        return {};
    }

    // Where generated code reports reads outside a buffer; null when it does not.
    virtual void* out_of_range_flag() const = 0;
    virtual Result<bool> take_out_of_range() const = 0; // reads and clears; waits for the device
    virtual std::span<const KernelInfo> kernels() const = 0;
};

} // namespace flexc::runtime
