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

// With layouts other than dense, batch is the number of requests, and q_len and kv_len are the most
// that one of them may have; each of the three may be 0. Otherwise all are from 1 to 2^30 - 1, and
// batch * heads is below 2^31. Each of q, k, v and o has at most kMaxTensorElements.
struct Sizes {
    std::int64_t batch = 1;
    std::int64_t heads = 1;
    std::int64_t kv_heads = 1; // divides heads
    std::int64_t q_len = 1;    // rows of q given here
    std::int64_t kv_len = 1;   // rows of k and v given here
};

// The position of a request's first query. zero: q_idx starts at 0. end: q_idx ends where the
// request's keys end, at KV_LEN - 1. automatic: end with paged keys, else zero.
enum class QueryStart : std::uint8_t { automatic, zero, end };

// The lengths of the requests of a kernel with ragged or paged layouts. Arrays are in host memory
// and are copied by plan() and update(); with on_device they are empty. Arrays that the kernel's
// layouts do not use stay empty.
struct Lengths {
    // [B + 1], ascending: request b has the rows cu_seqlens[b] to cu_seqlens[b + 1] of ragged
    // tensors.
    std::span<const std::int32_t> cu_seqlens_q, cu_seqlens_k;
    // [B]: how many of its rows (of ragged or dense tensors, or slots of its pages) a request uses.
    // Empty: all, where last_page_len applies to the last page.
    std::span<const std::int32_t> seqused_q, seqused_k;
    // The pages of request b in order, as a table [B, MAX_PAGES] whose entries beyond its keys are
    // not read, or as page_indices[page_indptr[b]] to page_indices[page_indptr[b + 1]]. Requests
    // may share pages.
    std::span<const std::int32_t> page_table;
    std::span<const std::int32_t> page_indptr, page_indices; // [B + 1], [TOTAL_PAGES]
    std::span<const std::int32_t> last_page_len;             // [B]: slots used of the last page
    std::int64_t page_size = 0;                              // 1 to 1024
    std::int64_t pages = 0;                                  // of the cache
    QueryStart query_start = QueryStart::automatic;
    std::span<const std::int32_t> query_starts; // [B]: instead of it
    // The arrays are in device memory and are passed to update(): they are empty here, and until
    // then no request has queries or keys. Ragged tensors of calls have as many rows as those in
    // PlanOptions::forward and backward, or without these as many as the sizes allow for all
    // requests.
    bool on_device = false;
};

inline constexpr std::int64_t kMaxPageSize = 1024;

// The arrays of Lengths as contiguous i32 in device memory. A call that is given some cannot have
// the lengths of a plan that nobody has updated: on CUDA it begins with what update() does with
// them, so that they have to be all that the layouts use; on a CPU they must equal the numbers with
// which the plan was made or last updated, otherwise it is an error.
struct LengthTensors {
    TensorView cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;
    TensorView page_table, page_indptr, page_indices, last_page_len;
    TensorView query_starts;
};

struct ParamValue {
    std::string_view name;
    double value = 0;
};

// q [B, H, Q, D], k [B, H_KV, KV, D], v [B, H_KV, KV, DV], o [B, H, Q, DV] in the kernel's type (o
// also in f32, as a partial result), lse [B, H, Q] f32, natural log; lse may be absent. Ragged: q,
// o [TOTAL_Q, H, .], lse [TOTAL_Q, H], k, v [TOTAL_K, H_KV, .]. Tensors may have more rows than the
// requests, which are not touched; rows that a request does not use get o = 0 and lse = -inf.
// Paged: k, v [PAGES, PAGE_SIZE, H_KV, .]; other orders are expressed by strides.
struct ForwardTensors {
    TensorView q, k, v, o, lse;
    const LengthTensors* lengths = nullptr;
    // With CompileOptions::kv_dtype: factors of the elements of k and v, f32. One for the tensor,
    // [H_KV], or for each page of paged keys [PAGES, H_KV], else for each batch entry or request
    // [B, H_KV]; a dim of 1 is broadcast. Absent: 1.
    TensorView k_scale, v_scale;
    // With CompileOptions::max_scores: the largest score that a row sees, after the score_mod; -inf
    // if it sees nothing. f32, in the shape of lse; may be absent. A sink is not a score. If a row
    // has a NaN, the value is unspecified.
    TensorView max_scores;
};

// o and lse are those that forward() wrote; d_lse may be absent. dq, dk, dv in the kernel's type or
// f32. Gradients of buffers are more accurate with o in f32.
struct BackwardTensors {
    TensorView q, k, v, o, lse, d_out, d_lse, dq, dk, dv;
    const LengthTensors* lengths = nullptr;
};

// Run-time values of a call. Changing any of them never compiles, except for tensors of a form that
// no earlier plan of the kernel had.
struct PlanOptions {
    std::optional<double> scale; // default 1/sqrt(D)
    std::span<const ParamValue> params;
    // For a shard of a longer sequence: q_idx and kv_idx start here, and Q_LEN and KV_LEN are
    // these. Offsets are at least 0; the whole is shorter than 2^30 and contains the rows that are
    // given.
    std::int64_t q_offset = 0;
    std::int64_t kv_offset = 0;
    std::optional<std::int64_t> global_q_len;
    std::optional<std::int64_t> global_kv_len;
    // For some heads of a larger whole, with CompileOptions::part_of_heads: h starts here, and H
    // and H_KV are these. By default, the whole ends with these heads and shares its keys as they
    // do. Sizes has the numbers of heads that are here, whose grouping is as in the whole.
    std::int64_t head_offset = 0;
    std::optional<std::int64_t> global_heads;
    std::optional<std::int64_t> global_kv_heads;
    // For kernels with ragged or paged layouts, which take no offsets of positions.
    Lengths lengths;
    CpuThreads cpu_threads;            // of the plan's calls on a CPU
    bool accumulate_gradients = false; // add into f32 dq, dk, dv and buffer gradients
    bool replace_dq = false;           // for all that: dq is written, in the type that it has
    // Examples of the tensors of later calls, read by plan() alone: their strides, alignment and
    // types choose the kernels. Null, and for absent tensors: contiguous and aligned to 16 bytes. A
    // call whose tensors the plan's kernels cannot take is an error. Ragged tensors should have as
    // many rows as later ones, as these determine the memory of block masks.
    const ForwardTensors* forward = nullptr;
    const BackwardTensors* backward = nullptr;
    // The buffers passed to plan() only resemble those of later calls, so each call builds its own
    // block mask, as without buffers.
    bool block_mask_per_call = false;
};

// Memory on the kernel's device, at least plan.workspace_bytes() long, 256-byte aligned.
struct Workspace {
    void* data = nullptr;
    std::size_t bytes = 0;
};

// One of several results over disjoint keys of the same queries: o [..., DV], in f32, f16 or bf16,
// and lse [...] in f32.
struct PartialResult {
    TensorView o, lse;
};
// Merges the results over all keys, in the order given; a part whose lse is -inf adds nothing,
// whatever its o is. Host memory. o may have another type than the parts, and o and lse may be
// those of a part; lse may be absent.
Result<void> merge_states(std::span<const PartialResult> parts, const TensorView& o,
                          const TensorView& lse = {});

namespace detail {
struct KernelState;
struct PlanState;
} // namespace detail

// Immutable and cheap to copy; valid for every call with the same sizes, on any thread.
class Plan {
  public:
    Plan() = default;
    std::size_t workspace_bytes() const;  // for forward or backward, whichever needs more
    std::size_t block_mask_bytes() const; // of the block mask; 0 where none is needed
    const Sizes& sizes() const;
    const detail::PlanState& state() const { return *state_; }

  private:
    friend class Kernel;
    explicit Plan(std::shared_ptr<const detail::PlanState> state) : state_(std::move(state)) {}
    std::shared_ptr<const detail::PlanState> state_;
};

struct KernelInfo {
    std::string name; // of the function in the module, as a profiler shows it
    int registers = 0; // the most of all functions of the module
    int spill_bytes = 0;
    int helper_spill_bytes = 0; // the most of functions of the module that run before or after it
    int shared_bytes = 0;
    double compile_ms = 0;
    std::string reason;   // why this kernel was chosen
    std::string schedule; // as CompileOptions::schedule; empty where a kernel has only one
};

// A cheap, copyable handle. All members may be called from many threads at once.
class Kernel {
  public:
    Kernel() = default;

    // Compiles the kernels that the tensors need if the usual ones cannot take them: Hopper's
    // kernels need tensors that TMA can walk (16-byte aligned bases and strides) and a positive
    // scale. If the mask needs a block mask and all buffers that it reads are given, launches on
    // the stream build it in memory of the plan; it stays valid for any number of calls as long as
    // those buffers do not change. Without the buffers, and for layouts other than dense, each call
    // builds a block mask in its workspace.
    Result<Plan> plan(const Sizes& sizes, std::span<const NamedTensor> buffers = {},
                      Stream stream = {}, const PlanOptions& options = {}) const;

    // Builds the plan's block mask again, for buffers with other contents. Allocates and compiles
    // nothing, and may be captured in a graph. All copies of the plan see the new block mask.
    Result<void> update(const Plan& plan, std::span<const NamedTensor> buffers,
                        Stream stream = {}) const;

    // Sets other lengths, within the plan's sizes and for equally many requests. All copies of the
    // plan use them from then on; calls already running use the old ones. On CUDA they are copied
    // in stream order to the plan's own memory, whose address never changes, so launches of a graph
    // that was captured before use them too. The page size must then be the plan's, and with a
    // backward, ragged tensors may have no more rows than those that plan() was given
    // (PlanOptions::backward) or its lengths had. This call itself cannot be captured.
    Result<void> update(const Plan& plan, const Lengths& lengths, Stream stream = {}) const;

    // The same from arrays that later work on the stream may read: nothing is copied to the host or
    // allocated, and the call may be captured in a graph, which then reads the arrays' contents at
    // each launch. Page size, pages and query_start are the plan's. On CUDA the device checks the
    // arrays: a wrong request gets the rows and keys that it can have, nothing outside of tensors
    // is read, and with CompileOptions::report_out_of_range, out_of_range() reports it.
    Result<void> update(const Plan& plan, const LengthTensors& lengths, Stream stream = {}) const;

    // Asynchronous on CUDA, allocates nothing, compiles nothing, may be captured in a graph.
    Result<void> forward(const Plan& plan, const ForwardTensors& tensors,
                         std::span<const NamedTensor> buffers = {}, Workspace workspace = {},
                         Stream stream = {}) const;

    // buffer_gradients: one contiguous tensor of the same shape for each grad buffer, in f32 or in
    // the buffer's type: see CompileOptions::gradient_type.
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
