// One attention problem on many ranks: each holds some rows of the queries and of the keys, and
// what the mask shows of the others' keys comes to it. A library of its own: flexc::distributed.
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

// Positions of a sequence, from begin up to, not including, end.
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
    // Pieces as even as can be, in order.
    static Result<Shards> contiguous(std::int64_t length, int ranks);
    // Of 2 * ranks pieces, rank r holds the r-th from the front and the r-th from the back: under a
    // causal mask all ranks have the same work.
    static Result<Shards> zigzag(std::int64_t length, int ranks);
    // Stripes of `rows` rows are dealt in turn.
    static Result<Shards> striped(std::int64_t length, int ranks, std::int64_t rows);
    // One list of ranges for each rank, which together hold every row once.
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

// How ranks reach each other. Implemented here for ranks of one process and for MPI; a program may
// have another, for a transport of its own.
class Communicator {
  public:
    struct Message {
        int peer = 0;
        void* data = nullptr;
        std::size_t bytes = 0; // the same on both sides
    };
    // What start() returned, to be waited for once.
    using Ticket = std::uint64_t;

    Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    virtual ~Communicator() = default;

    virtual int rank() const = 0;
    virtual int ranks() const = 0;
    // Sends and receives begin, without waiting for anyone. Messages from one rank to another on
    // one channel, 0 or 1, arrive in the order in which they were started. `memory` owns what they
    // are read from and written to: it is kept until nobody touches it any more, also after an
    // error.
    virtual Result<Ticket> start(int channel, std::span<const Message> sends,
                                 std::span<const Message> receives,
                                 std::shared_ptr<void> memory) = 0;
    // Until all of them are done. An error, ErrorCode::io, names the rank that did not answer in
    // time, has gone, or sent something else; nothing works after it.
    virtual Result<void> wait(Ticket ticket) = 0;

    // Messages in the memory of GPUs, in the order of CUDA streams; a transport that has none
    // leaves these as they are, and is for ranks on CPUs.
    virtual bool has_streams() const { return false; }
    // As start(); messages are read and written after the work that `stream` has now.
    virtual Result<Ticket> start_on_stream(Stream stream, int channel,
                                           std::span<const Message> sends,
                                           std::span<const Message> receives,
                                           std::shared_ptr<void> memory);
    // Work that comes to `stream` later finds them done. Waits, with an end, for no more than that
    // other ranks start theirs.
    virtual Result<void> wait_on_stream(Ticket ticket, Stream stream);
    // Until the GPU has done all that was waited for on streams, with an end as that of wait().
    virtual Result<void> finish_streams();
    // Whether wait_on_stream() waits for nobody, and abandon() ends what the GPU waits for: ranks
    // then compare what must be equal beside the work, but for the first call of each kind.
    virtual bool runs_ahead() const { return false; }
    virtual void abandon() {} // nothing works after it
};

struct CommunicatorOptions {
    double timeout_seconds = 600; // of one wait
};

// Ranks of one process, a communicator each, to be used from as many threads: for tests, and for
// hosts that drive several devices. When one of them is destroyed, the others' waits for it fail.
// On GPUs, one or several, what one rank sends is copied to the other's memory.
Result<std::vector<std::shared_ptr<Communicator>>>
in_process_communicators(int ranks, const CommunicatorOptions& options = {});

// By MPI, from libflexc_mpi.so, which FLEXC_MPI_BACKEND may name. `comm` points to the caller's
// MPI_Comm, of which a duplicate is made, so that messages never meet the caller's own; null is
// MPI_COMM_WORLD, and initialises MPI if nobody has, to be finalised when the process ends. All
// ranks of it call this together. Needs MPI_THREAD_FUNNELED, and is for one thread.
Result<std::shared_ptr<Communicator>> mpi_communicator(const void* comm = nullptr,
                                                       const CommunicatorOptions& options = {});

// By NCCL, from libnccl.so.2, which FLEXC_NCCL may name: ranks that are processes or threads with a
// GPU each. Version 2.18 or later. A communicator is for one thread, and runs ahead.
using NcclId = std::array<std::byte, 128>; // ncclUniqueId
// For one rank, which gives it to all others by a channel of the caller's.
Result<NcclId> nccl_id();
// All ranks call these together. The first two have GPUs that the caller names.
Result<std::shared_ptr<Communicator>> nccl_communicator(const NcclId& id, int rank, int ranks,
                                                        Device device,
                                                        const CommunicatorOptions& options = {});
// Rank 0 makes the id and writes it to a file that all ranks see, at a path where no file was
// before; it is gone when all have read it.
Result<std::shared_ptr<Communicator>> nccl_communicator(const std::string& path, int rank,
                                                        int ranks, Device device,
                                                        const CommunicatorOptions& options = {});
// comm: the caller's ncclComm_t, of NCCL as this process has it; of which ncclCommSplit makes
// another, so that messages never meet the caller's own.
Result<std::shared_ptr<Communicator>> nccl_communicator(void* comm,
                                                        const CommunicatorOptions& options = {});

// What torchrun tells a process by RANK, WORLD_SIZE and LOCAL_RANK.
struct LaunchedRank {
    int rank = 0, ranks = 1, local_rank = 0;
};
Result<LaunchedRank> torchrun_rank();

// ring: rank r computes with its own keys, then with those of rank r - 1, r - 2, ...; what it needs
// of them arrives during the step before. all_gather: what it needs of all ranks is put together
// first, and each range of queries meets it at once: fewest partial results, most memory. Where
// that is more than DistributedOptions::gathered_bytes, pieces of heads follow each other.
// ulysses: each rank gets all queries and keys of some heads instead, whatever the mask shows, and
// has the work of one rank with fewer heads; useful while ranks are no more than heads. Where there
// are more, or only some are near each other: inside nodes, DistributedOptions::ranks_per_node.
// automatic: all_gather within gathered_bytes, also in pieces where these are no more launches than
// a ring's; else ring.
enum class Exchange : std::uint8_t { automatic, ring, all_gather, ulysses };
std::string_view name(Exchange exchange); // "automatic", ...

// What becomes of gradients of captured buffers, which are sums over all queries and keys: none:
// each rank keeps what its own queries give, for a trainer that sums over ranks anyway; sum, and
// average, the sum divided by the number of ranks: the same on every rank.
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
    // Of other ranks' keys and values that all_gather has on a rank at a time, as far as pieces of
    // whole heads of keys allow: one is computed with while the next one comes. Backward, their
    // gradients are there too, in f32.
    std::uint64_t gathered_bytes = std::uint64_t{256} << 20;
    // Of ulysses: heads are swapped inside nodes of so many ranks, which are neighbours by number,
    // and keys travel across nodes by ring. 0: all ranks are one node.
    int ranks_per_node = 0;
    // Of ragged layouts: of the whole problem, the same on every rank.
    Lengths lengths;
};

// Of one rank and one pass, as the plan knows it beforehand.
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

// Immutable and cheap to copy. One call at a time: a plan is of one communicator.
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

// A cheap, copyable handle, like Kernel. Each member function that has a plan or a communicator is
// called by all ranks together. What they must agree on is compared before anything else travels:
// where ranks differ, or a call is wrong on one of them, every rank gets an error that names it.
// Nothing is written then, unless the communicator runs ahead: its calls after a plan's first of a
// kind compare beside the work, results may be written in part, and nothing works after the error.
class DistributedKernel {
  public:
    DistributedKernel() = default;

    // Finds from the mask which keys each rank needs; buffers are whole on every rank, and those
    // that the mask reads hold the same there.
    // On a GPU the plan keeps memory that its calls work in, and buffers that the mask reads are
    // copied to the host, once the stream's work is done.
    Result<DistributedPlan> plan(const DistributedSizes& sizes,
                                 std::shared_ptr<Communicator> communicator,
                                 std::span<const NamedTensor> buffers = {},
                                 const DistributedOptions& options = {}, Stream stream = {}) const;

    // Tensors have this rank's rows: q, o [B, H, rows, .], k, v [B, H_KV, rows, .], or of ragged
    // layouts [rows, H, .] and [rows, H_KV, .], in the types that Kernel::forward takes. Those of a
    // rank without rows may be absent.
    // On a GPU all is in the order of the stream, and a call returns when its messages are done,
    // which is before the last launches are.
    Result<void> forward(const DistributedPlan& plan, const ForwardTensors& tensors,
                         std::span<const NamedTensor> buffers = {}, Stream stream = {}) const;
    // o and lse as forward gave them.
    Result<void> backward(const DistributedPlan& plan, const BackwardTensors& tensors,
                          std::span<const NamedTensor> buffers,
                          std::span<const NamedTensor> buffer_gradients, Stream stream = {}) const;

    // Shards of queries and keys of one length that give all ranks as many rows and, as far as
    // whole chunks can, as many visible elements. Without communication: the same on every rank.
    // Lengths of ragged layouts are the rows of packed tensors here.
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

// The same programs and options as compile(), for queries and keys that are both dense or both
// ragged. The device is the CPU unless another is named.
Result<DistributedKernel> compile_distributed(std::string_view text,
                                              const CompileOptions& options = {});

} // namespace flexc
