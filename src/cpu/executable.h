// A program compiled for this machine's processor: machine code and the loops that call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/arguments.h"
#include "common/sequences.h"
#include "flexc/result.h"
#include "flexc/types.h"
#include "passes/mod.h"
#include "support/watch.h"

namespace flexc::cpu {

struct ExecutableOptions {
    DType dtype = DType::f32;           // of q, k, v: f32, f16 or bf16
    std::optional<DType> kv_dtype = {}; // of k, v where it is another, of eight bits
    int head_dim = 64;
    int head_dim_v = 0; // 0: head_dim
    int threads = 0;    // 0: the variable that support/env.def names, else one per core
    bool batch_invariant = false;
};

struct Call {
    const SequenceArguments* sequences = nullptr; // null: dense
    AttentionArguments arguments; // host pointers; delta and dq_accumulator are not used
    // passes::argument_slots(mod) order. Words of gradient slots are not read: see `gradients`.
    std::span<const std::uint64_t> words;
    // Backward: one per buffer that has captured gradients (Executable::gradient_buffers order),
    // f32, of the buffer's shape, any strides. What is there is added to, so the caller zeroes it.
    std::span<const TensorView> gradients;
    CpuThreads threads;        // none: the executable's own
    void* workspace = nullptr; // workspace_bytes(call), 64-byte aligned
};

class Executable {
  public:
    virtual ~Executable() = default;

    // Reads only sizes and the shapes of gradients, no pointers. backward: whether it is for
    // backward().
    virtual std::size_t workspace_bytes(const Call& call, bool backward) const = 0;
    virtual Result<void> forward(const Call& call) const = 0;
    virtual Result<void> backward(const Call& call) const = 0;

    // Indices into Program::buffers, ascending.
    virtual std::span<const std::uint32_t> gradient_buffers() const = 0;
    // Relocatable machine code for a later compile() of the same mod, options and backend identity.
    virtual std::string_view object_bytes() const = 0;
    virtual bool from_object() const = 0; // LLVM's optimiser did not run
    virtual int threads() const = 0;
};

// With `object`, links those bytes; if they do not link, the mod is compiled.
Result<std::shared_ptr<const Executable>> compile(const passes::Mod& mod,
                                                  const ExecutableOptions& options,
                                                  std::optional<std::string_view> object = {},
                                                  const support::Watch& watch = {});

// What determines object bytes besides the mod: versions and processor. Used in cache keys.
Result<std::string> backend_identity();

} // namespace flexc::cpu
