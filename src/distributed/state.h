// The state behind the handles of flexc/distributed.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "distributed/cuda_work.h"
#include "distributed/requests.h"
#include "distributed/schedule.h"
#include "distributed/tensor_work.h"
#include "distributed/ulysses.h"
#include "flexc/distributed.h"
#include "runtime/state.h"

namespace flexc::distributed {

// A buffer of which each rank has the rows of its own queries, or keys.
struct Sharded {
    std::size_t buffer = 0, dim = 0; // of the program, and of the buffer
    bool is_query = false;
    std::string name, param; // of the shift
    DType dtype = DType::f32;
    bool grad = false;
    std::vector<std::int64_t> shape; // with this rank's rows

    TensorView view(void* data, DType type, std::int64_t rows) const {
        std::vector<std::int64_t> own = shape;
        own[dim] = rows;
        return TensorView::contiguous(data, type, own);
    }
};

// Keys that are contiguous in memory during a step: whole runs of one or more ranks.
struct Block {
    RowRange keys;
    struct Part {
        int peer = 0;
        RowRange run;
    };
    std::vector<Part> parts;
    // First row in this rank's own tensors; -1 if some keys come from other ranks.
    std::int64_t local_row = -1;
};

// One launch, and the rows that it computes.
struct Launch {
    Plan plan;
    std::int64_t q_row = 0, q_count = 0; // of this rank's tensors
    std::size_t block = 0;
    std::int64_t k_row = 0, k_count = 0;                // of the block
    bool is_alone = false;                              // no other piece has queries of its range
    bool forward_forks = false, backward_forks = false; // in the stream that is forked
    bool is_first = false, is_last = false; // of those that have its queries; the last has all of
                                            // a range, and all heads
};

// The launch that computes the sinks of some of this rank's rows, as attention to one key.
struct SinkLaunch {
    Plan plan;
    RowRange rows;
};

struct StepPlan {
    HeadBlock heads; // that it is of; other steps have the same heads, or all others
    std::vector<Block> blocks;
    std::vector<Launch> launches;
};

} // namespace flexc::distributed

namespace flexc::detail {

struct DistributedKernelState {
    Kernel kernel; // without the program's sink; its gradients of buffers are f32
    std::optional<Kernel> sink_kernel;
    GradientType gradient_type = GradientType::f32;
    std::string program;                                        // what ranks must agree on
    std::shared_ptr<const distributed::DeviceCode> device_code; // null: host memory
    // For compiling kernels of some of the heads.
    std::string text;
    CompileOptions options;
};

// Kinds of calls on which the ranks have agreed before.
struct AgreedCalls {
    bool forward = false, backward = false;
};

struct DistributedPlanState {
    std::shared_ptr<const DistributedKernelState> made_by;
    std::shared_ptr<const DistributedKernelState> kernel; // the same, or for the plan's lengths
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<distributed::RankWork> work;
    DistributedSizes sizes; // of one sequence, where there are requests
    std::optional<distributed::Requests> requests;
    std::vector<distributed::Sharded> sharded;
    Exchange exchange = Exchange::ring;
    bool steps_overlap = false; // launches of one go on beside those of the next
    GradientReduction reduction = GradientReduction::sum;
    PlanState whole; // sizes and params of the whole problem
    distributed::RankSchedule schedule;
    std::vector<distributed::StepPlan> steps;    // as many as the schedule has
    std::optional<distributed::Ulysses> ulysses; // instead of the schedule
    std::int64_t first_head = 0; // of the whole problem, where the kernel is of a part of its heads
    std::optional<Kernel> piece_kernel; // of a part of the heads, where steps are of some
    // Ranges of queries (rows of the tensors) that no launch computes alone, and those of them that
    // no last launch covers completely.
    std::vector<RowRange> merged_rows, unfinished_rows;
    std::vector<distributed::SinkLaunch> sinks; // of each range of queries; empty without a sink
    std::int64_t q_rows = 0, k_rows = 0;        // of this rank's tensors
    std::size_t workspace_bytes = 0;
    std::int64_t most_queries = 0; // of a launch
    Traffic traffic;
    std::string explanation;
    std::string agreed; // names what the ranks have found equal
    std::unique_ptr<AgreedCalls> calls = std::make_unique<AgreedCalls>();

    const Kernel& launch_kernel() const { return piece_kernel ? *piece_kernel : kernel->kernel; }
};

} // namespace flexc::detail
