// Attention across ranks: each rank holds some rows of the queries and of the keys, and receives
// those of the others' keys that the mask shows to its queries. A separate library:
// flexc::distributed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flexc/compile.h"
#include "flexc/kernel.h"
#include "flexc/result.h"
#include "flexc/types.h"

namespace flexc {

// Positions of a sequence, from begin up to but not including end.
struct RowRange {
    std::int64_t begin = 0, end = 0;

    std::int64_t count() const { return end - begin; }
    friend bool operator==(const RowRange&, const RowRange&) = default;
};

inline constexpr int kMaxRanks = 1 << 20;

// Which rows of a sequence each rank holds. A rank's tensors have the rows of its ranges one after
// another, in the order of the list. Shares may differ in length, and may be empty.
class Shards {
  public:
    Shards() = default; // of no rows on no ranks; those below are of 1 to kMaxRanks
    // Consecutive pieces, as even as possible.
    static Result<Shards> contiguous(std::int64_t length, int ranks);
    // Of 2 * ranks pieces, rank r holds the r-th from the front and the r-th from the back, so that
    // under a causal mask all ranks have the same work.
    static Result<Shards> zigzag(std::int64_t length, int ranks);
    // Stripes of `rows` rows, assigned to the ranks in turn.
    static Result<Shards> striped(std::int64_t length, int ranks, std::int64_t rows);
    // Takes a list of ranges for each rank; together they must hold every row exactly once.
    static Result<Shards> of(std::int64_t length, std::vector<std::vector<RowRange>> ranges);

    std::int64_t length() const { return length_; }
    int ranks() const { return static_cast<int>(ranges_.size()); }
    std::span<const RowRange> ranges(int rank) const {
        return ranges_[static_cast<std::size_t>(rank)];
    }
    std::int64_t rows(int rank) const; // of this rank's tensors

  private:
    Shards(std::int64_t length, std::vector<std::vector<RowRange>> ranges)
        : length_(length), ranges_(std::move(ranges)) {}

    std::int64_t length_ = 0;
    std::vector<std::vector<RowRange>> ranges_;
};

// How ranks exchange messages. Implemented for ranks of one process, MPI and NCCL; a program may
// implement it for a transport of its own.
class Communicator {
  public:
    struct Message {
        int peer = 0;
        void* data = nullptr;
        std::size_t bytes = 0; // the same on both sides
    };
    // Names the messages of one start(); passed to wait() exactly once.
    using Ticket = std::uint64_t;

    Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    virtual ~Communicator() = default;

    virtual int rank() const = 0;
    virtual int ranks() const = 0;
    // Starts sends and receives, without waiting. Messages from one rank to another on one channel
    // (0 or 1) arrive in the order in which they were started. `memory` owns the memory that they
    // read and write, and is kept as long as anything may access it, even after an error.
    virtual Result<Ticket> start(int channel, std::span<const Message> sends,
                                 std::span<const Message> receives,
                                 std::shared_ptr<void> memory) = 0;
    // Waits until all of them are done. An error, ErrorCode::io, names the rank that did not answer
    // in time, has gone, or sent something else; the communicator is unusable afterwards.
    virtual Result<void> wait(Ticket ticket) = 0;

    // Messages in GPU memory, ordered by CUDA streams. A transport for CPUs alone keeps the
    // defaults.
    virtual bool has_streams() const { return false; }
    // Like start(); messages are read and written after the work that `stream` has now.
    virtual Result<Ticket> start_on_stream(Stream stream, int channel,
                                           std::span<const Message> sends,
                                           std::span<const Message> receives,
                                           std::shared_ptr<void> memory);
    // Makes later work of `stream` wait for the messages. The call itself waits, with a timeout, at
    // most until the other ranks have started theirs.
    virtual Result<void> wait_on_stream(Ticket ticket, Stream stream);
    // Waits until the GPU has done everything that streams were made to wait for, with the timeout
    // of wait().
    virtual Result<void> finish_streams();
    // Whether wait_on_stream() does not wait for other ranks, and abandon() ends what the GPU waits
    // for. Ranks then compare what must be equal while they work, except in the first call of each
    // kind.
    virtual bool runs_ahead() const { return false; }
    virtual void abandon() {} // nothing works after it
};

struct CommunicatorOptions {
    double timeout_seconds = 600; // of one wait
};

// Ranks of one process, with a communicator each, to be used from as many threads: for tests, and
// for hosts that drive several devices. When one of them is destroyed, waits of the others for it
// fail. On one or several GPUs, messages are copies from one rank's memory to the other's.
Result<std::vector<std::shared_ptr<Communicator>>>
in_process_communicators(int ranks, const CommunicatorOptions& options = {});

// Ranks over MPI, by libflexc_mpi.so (FLEXC_MPI_BACKEND may name it). `comm` points to the caller's
// MPI_Comm, which is duplicated so that messages never mix with the caller's; null means
// MPI_COMM_WORLD and initialises MPI if nobody has, to be finalised when the process ends. Called
// by all ranks of it together. Needs MPI_THREAD_FUNNELED; for use by one thread.
Result<std::shared_ptr<Communicator>> mpi_communicator(const void* comm = nullptr,
                                                       const CommunicatorOptions& options = {});

// Ranks over NCCL, by libnccl.so.2 (FLEXC_NCCL may name it), version 2.18 or later: processes or
// threads with a GPU each. A communicator is for use by one thread, and runs ahead.
using NcclId = std::array<std::byte, 128>; // ncclUniqueId
// Called by one rank, which passes the id to all others by a channel of the caller's.
Result<NcclId> nccl_id();
// Called by all ranks together. The first two take GPUs that the caller names.
Result<std::shared_ptr<Communicator>> nccl_communicator(const NcclId& id, int rank, int ranks,
                                                        Device device,
                                                        const CommunicatorOptions& options = {});
// Rank 0 makes the id and writes it to a file that all ranks can read, at a path where no file
// exists; it is removed when all have read it.
Result<std::shared_ptr<Communicator>> nccl_communicator(const std::string& path, int rank,
                                                        int ranks, Device device,
                                                        const CommunicatorOptions& options = {});
// comm: the caller's ncclComm_t, from the same NCCL library. ncclCommSplit makes another one of it,
// so that messages never mix with the caller's.
Result<std::shared_ptr<Communicator>> nccl_communicator(void* comm,
                                                        const CommunicatorOptions& options = {});

// What torchrun passes to a process in RANK, WORLD_SIZE and LOCAL_RANK.
struct LaunchedRank {
    int rank = 0, ranks = 1, local_rank = 0;
};
Result<LaunchedRank> torchrun_rank();

// ring: rank r computes with its own keys, then with those of rank r - 1, r - 2, ...; the ones that
// it needs are received during the step before. all_gather: the needed keys of all ranks are
// gathered, while queries that see only their own rank's keys are computed; each other range of
// queries then attends to what it sees in one launch: fewest partial results, most memory. If that
// is more than DistributedOptions::gathered_bytes, heads are computed in pieces, one after another.
// ulysses: each rank receives all queries and keys of some heads instead, whatever the mask shows,
// and has the work of one rank with fewer heads; useful as long as there are no more ranks than
// heads. With more ranks, or if only some are close to each other, it can be used inside nodes:
// DistributedOptions::ranks_per_node. automatic: all_gather if gathered_bytes suffice, also in
// pieces if that takes no more launches than a ring; else ring.
enum class Exchange : std::uint8_t { automatic, ring, all_gather, ulysses };
std::string_view name(Exchange exchange); // "automatic", ...

// How gradients of captured buffers, which are sums over all queries and keys, are combined. none:
// each rank keeps what its own queries give, for a trainer that sums over ranks anyway. sum, and
// average (the sum divided by the number of ranks): the same on every rank.
enum class GradientReduction : std::uint8_t { none, sum, average };
std::string_view name(GradientReduction reduction); // "none", ...

struct DistributedSizes {
    std::int64_t batch = 1, heads = 1, kv_heads = 1; // batch: of ragged layouts, requests
    Shards queries, keys; // of Q_LEN and of KV_LEN rows; or of the rows of packed tensors
};

struct DistributedOptions {
    std::optional<double> scale; // default 1/sqrt(D)
    std::span<const ParamValue> params;
    Exchange exchange = Exchange::automatic;
    GradientReduction reduction = GradientReduction::sum;
    CpuThreads cpu_threads;
    // Most bytes of other ranks' keys and values that all_gather holds on a rank at a time, as far
    // as pieces of whole KV heads allow: one piece is computed while the next is received. In a
    // backward, their f32 gradients are held as well.
    std::uint64_t gathered_bytes = std::uint64_t{256} << 20;
    // For ulysses: heads are exchanged inside nodes of this many ranks with consecutive numbers,
    // and keys travel across nodes in a ring. 0: all ranks are one node.
    int ranks_per_node = 0;
    // For ragged layouts: lengths of the whole problem, the same on every rank.
    Lengths lengths;
};

// What one rank sends, receives and computes, as the plan knows it in advance.
struct Traffic {
    std::uint64_t forward_sent = 0, forward_received = 0; // bytes
    std::uint64_t backward_sent = 0, backward_received = 0;
    std::int64_t pieces = 0; // launches of the kernel
    double visible_area = 0; // elements of the score matrix, estimated from tiles, by all heads
    double fair_area = 0;    // the same, of all ranks by their number
};

namespace detail {
struct DistributedKernelState;
struct DistributedPlanState;
} // namespace detail

// Immutable and cheap to copy. Used by one call at a time, as it belongs to one communicator.
class DistributedPlan {
  public:
    DistributedPlan() = default;
    const Traffic& traffic() const;
    Exchange exchange() const;   // never automatic
    std::string explain() const; // the exchange, why it was chosen, and what each step does
    const detail::DistributedPlanState& state() const { return *state_; }

  private:
    friend class DistributedKernel;
    explicit DistributedPlan(std::shared_ptr<const detail::DistributedPlanState> state)
        : state_(std::move(state)) {}
    std::shared_ptr<const detail::DistributedPlanState> state_;
};

// A cheap, copyable handle, like Kernel. Member functions that take a plan or a communicator are
// called by all ranks together. What they must agree on is compared before anything else is sent:
// if ranks differ, or a call is wrong on one of them, every rank gets an error that names it.
// Nothing is written then, unless the communicator runs ahead: after a plan's first call of a kind,
// ranks compare while they work, so results may be partly written, and the communicator is unusable
// after the error.
class DistributedKernel {
  public:
    DistributedKernel() = default;

    // Finds from the mask which keys each rank needs. Buffers are whole on every rank, and those
    // that the mask reads must be equal on all ranks. On a GPU the plan keeps the memory in which
    // its calls work, and buffers that the mask reads are copied to the host after the stream's
    // work is done.
    Result<DistributedPlan> plan(const DistributedSizes& sizes,
                                 std::shared_ptr<Communicator> communicator,
                                 std::span<const NamedTensor> buffers = {},
                                 const DistributedOptions& options = {}, Stream stream = {}) const;

    // Tensors have this rank's rows: q, o [B, H, rows, .], k, v [B, H_KV, rows, .], or for ragged
    // layouts [rows, H, .] and [rows, H_KV, .], in the types that Kernel::forward takes. Those of a
    // rank without rows may be absent. On a GPU everything is ordered by the stream, and a call
    // returns when its messages are done, which is before the last launches are.
    Result<void> forward(const DistributedPlan& plan, const ForwardTensors& tensors,
                         std::span<const NamedTensor> buffers = {}, Stream stream = {}) const;
    // o and lse are those that forward() wrote.
    Result<void> backward(const DistributedPlan& plan, const BackwardTensors& tensors,
                          std::span<const NamedTensor> buffers,
                          std::span<const NamedTensor> buffer_gradients, Stream stream = {}) const;

    // Returns shards of queries and keys of one length that give all ranks equally many rows and,
    // as far as whole chunks allow, equally many visible elements, in as few ranges as possible. No
    // communication is needed: the result is the same on every rank. For ragged layouts, lengths
    // are the rows of packed tensors.
    Result<Shards> balanced_shards(const Sizes& sizes, int ranks,
                                   std::span<const NamedTensor> buffers = {},
                                   const DistributedOptions& options = {},
                                   Stream stream = {}) const;

    const Kernel& kernel() const; // of the pieces
    explicit operator bool() const { return state_ != nullptr; }

    explicit DistributedKernel(std::shared_ptr<const detail::DistributedKernelState> state)
        : state_(std::move(state)) {}
    const detail::DistributedKernelState& state() const { return *state_; }

  private:
    std::shared_ptr<const detail::DistributedKernelState> state_;
};

// Takes the same programs and options as compile(), for queries and keys that are both dense or
// both ragged. The device is the CPU unless another is named.
Result<DistributedKernel> compile_distributed(std::string_view text,
                                              const CompileOptions& options = {});

} // namespace flexc
