// The interface of a backend: compiled code for one program, its types and its device.
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
#include "plan/few_work.h"

namespace flexc::runtime {

enum class Pass : std::uint8_t { forward, backward };

// The variant of each pass that the calls of a plan use, as an index.
struct PassVariants {
    std::size_t forward = 0, backward = 0;
};

struct Call {
    AttentionArguments attention{};
    // Null for dense tensors. Otherwise the lengths in `attention` are the maxima over all
    // requests.
    const SequenceArguments* sequences = nullptr;
    const plan::FewWork* few_work = nullptr; // null: the host does not know the lengths
    std::span<const std::uint64_t> words;    // in argument_slots order
    // Backward: one f32, contiguous view per buffer of the program; empty if it has no gradient.
    std::span<const TensorView> gradients;
    // Outputs for gradients that are returned in another type, contiguous; empty for the others.
    std::span<const TensorView> rounded_gradients;
    bool accumulate_gradients = false; // add to what gradients hold, instead of replacing it
    CpuThreads cpu_threads;
    Workspace workspace;
    Stream stream;
    void* block_mask = nullptr; // block_mask_bytes() long, where masks need one
    PassVariants variants;
    bool is_inside = true; // sizes and params are those of Mod::inside_calls
};

class Executable {
  public:
    virtual ~Executable() = default;

    // Chooses the variants for calls like these, and compiles them if needed. The second call is
    // the backward; null if there is none. visible_keys: that a query of dense tensors may see.
    virtual Result<PassVariants> choose(const Call&, const Call* /*backward*/,
                                        std::int64_t /*visible_keys*/) const {
        return PassVariants{};
    }

    virtual Result<void> forward(const Call& call) const = 0;
    virtual Result<void> backward(const Call& call) const = 0;
    // Reads only sizes and the shapes of gradients, no pointers.
    virtual std::size_t workspace_bytes(const Call& call, bool backward) const = 0;

    // Whether calls may need block masks.
    virtual bool has_block_masks() const { return false; }
    // Bytes for block masks; 0 if kernels compute the tiles to visit as ranges. Reads only sizes,
    // no pointers.
    virtual std::size_t block_mask_bytes(const Call&) const { return 0; }
    // Fills call.block_mask from the buffers that the mask reads, ahead of later work on the
    // stream: for one pass, or for both.
    virtual Result<void> build_block_mask(const Call&, std::optional<Pass>) const { return {}; }

    // Allocates device memory that a plan owns.
    virtual Result<std::shared_ptr<void>> allocate_for_plan(std::size_t bytes) const = 0;
    // Whether launches read the records of requests from such memory. copy_for_plan() writes it,
    // the pieces one after another, ahead of later work on the stream.
    virtual bool reads_sequences_of_plan() const { return false; }
    virtual Result<void> copy_for_plan(void* /*to*/,
                                       std::span<const std::span<const std::byte>> /*pieces*/,
                                       Stream) const {
        return {};
    }
    // Makes the records from arrays of lengths in device memory; may be captured in a graph.
    virtual Result<void> read_lengths(const LengthArrays&, const SequenceRecords& /*to*/,
                                      Stream) const {
        return {};
    }

    // The flag that generated code sets when a read is outside its buffer; null if it reports none.
    virtual void* out_of_range_flag() const = 0;
    virtual Result<bool> take_out_of_range() const = 0; // reads and clears; waits for the device
    virtual std::span<const KernelInfo> kernels() const = 0;
};

} // namespace flexc::runtime
