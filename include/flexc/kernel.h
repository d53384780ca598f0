// A compiled attention kernel: plan once per set of sizes, then launch forward and backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flexc/options.h"
#include "flexc/result.h"
#include "flexc/types.h"

namespace flexc {

// A CUDA stream (CUstream or cudaStream_t). Ignored on the CPU, where calls return when done.
struct Stream {
    void* handle = nullptr;
};

struct Sizes {
    std::int64_t batch = 1;
    std::int64_t heads = 1;
    std::int64_t kv_heads = 1; // divides heads
    std::int64_t q_len = 1;    // rows of q given here
    std::int64_t kv_len = 1;   // rows of k and v given here
};

struct ParamValue {
    std::string_view name;
    double value = 0;
};

// Run-time values of a call. Changing any of them never compiles.
struct PlanOptions {
    std::optional<double> scale; // default 1/sqrt(D)
    std::span<const ParamValue> params;
    // A shard of a longer sequence: q_idx and kv_idx start here, and Q_LEN and KV_LEN read these.
    std::int64_t q_offset = 0;
    std::int64_t kv_offset = 0;
    std::optional<std::int64_t> global_q_len;
    std::optional<std::int64_t> global_kv_len;
    bool accumulate_gradients = false; // add into f32 dq, dk, dv and buffer gradients
};

// q [B, H, Q, D], k [B, H_KV, KV, D], v [B, H_KV, KV, DV], o [B, H, Q, DV] in the kernel's type
// (o also in f32, a partial result), lse [B, H, Q] f32, natural log; lse may be absent.
struct ForwardTensors {
    TensorView q, k, v, o, lse;
};

// o and lse as forward gave them; d_lse may be absent. dq, dk, dv in the kernel's type or f32.
// Gradients of buffers are closer with o in f32.
struct BackwardTensors {
    TensorView q, k, v, o, lse, d_out, d_lse, dq, dk, dv;
};

// Memory on the kernel's device, at least plan.workspace_bytes() long, 256-byte aligned.
struct Workspace {
    void* data = nullptr;
    std::size_t bytes = 0;
};

namespace detail {
struct KernelState;
struct PlanState;
} // namespace detail

// Immutable and cheap to copy; valid for every call with the same sizes, on any thread.
class Plan {
  public:
    Plan() = default;
    std::size_t workspace_bytes() const; // for forward or backward, whichever needs more
    std::size_t
    map_bytes() const; // of the map of tiles that the mask shows; 0 where none is needed
    const Sizes& sizes() const;
    const detail::PlanState& state() const { return *state_; }

  private:
    friend class Kernel;
    explicit Plan(std::shared_ptr<const detail::PlanState> state) : state_(std::move(state)) {}
    std::shared_ptr<const detail::PlanState> state_;
};

struct KernelInfo {
    std::string name; // of the function in the module, as a profiler shows it
    int registers = 0;
    int spill_bytes = 0;
    int shared_bytes = 0;
    double compile_ms = 0;
    std::string reason;   // why this kernel was chosen
    std::string schedule; // as CompileOptions::schedule; empty where a kernel has only one
};

// A cheap, copyable handle. All members may be called from many threads at once.
class Kernel {
  public:
    Kernel() = default;

    // Where the mask needs a map of tiles, and all buffers that it reads are given, launches on the
    // stream build it in memory of the plan: it then stands for what those buffers hold, for any
    // number of calls. Without them each call builds a map in its workspace.
    Result<Plan> plan(const Sizes& sizes, std::span<const NamedTensor> buffers = {},
                      Stream stream = {}, const PlanOptions& options = {}) const;

    // Builds the plan's map again, for buffers that hold something else: allocates nothing,
    // compiles nothing, may be captured in a graph. All copies of the plan see the new map.
    Result<void> update(const Plan& plan, std::span<const NamedTensor> buffers,
                        Stream stream = {}) const;

    // Asynchronous on CUDA, allocates nothing, compiles nothing, may be captured in a graph. But on
    // Hopper the first call whose tensors the copy engine cannot walk (16-byte aligned bases and
    // strides) or whose scale is not positive (or below 2^-20, with keys as a grid) compiles the
    // generic kernel, unless ForwardKernel::generic was asked for.
    Result<void> forward(const Plan& plan, const ForwardTensors& tensors,
                         std::span<const NamedTensor> buffers = {}, Workspace workspace = {},
                         Stream stream = {}) const;

    // buffer_gradients: one contiguous tensor for each grad buffer, of its shape, and f32 or of its
    // type: see CompileOptions::gradient_type.
    Result<void> backward(const Plan& plan, const BackwardTensors& tensors,
                          std::span<const NamedTensor> buffers,
                          std::span<const NamedTensor> buffer_gradients, Workspace workspace,
                          Stream stream = {}) const;

    // With CompileOptions::report_out_of_range: whether any launch since the last call read outside
    // a buffer. Waits for the device.
    Result<bool> out_of_range() const;

    const CompileOptions& options() const;
    std::span<const KernelInfo> kernels() const;
    double compile_ms() const;
    bool from_cache() const; // no backend compiler ran
    Device device() const;
    explicit operator bool() const { return state_ != nullptr; }

    explicit Kernel(std::shared_ptr<const detail::KernelState> state) : state_(std::move(state)) {}
    const detail::KernelState& state() const { return *state_; }

  private:
    std::shared_ptr<const detail::KernelState> state_;
};

} // namespace flexc
