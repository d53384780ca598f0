// One attention problem, its answer by the definition, and the same problem on one rank or many.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention_oracle.h"
#include "flexc/distributed.h"
#include "flexc/flexc.h"

namespace flexc::test {

// Of ragged tensors: q_len and kv_len of a case are the rows of all requests then, batch is 1.
struct RaggedCase {
    std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k, seqused_q = {}, seqused_k = {};
    QueryStart query_start = QueryStart::zero;

    std::int64_t requests() const { return static_cast<std::int64_t>(cu_seqlens_q.size()) - 1; }
    Lengths lengths() const {
        return {.cu_seqlens_q = cu_seqlens_q,
                .cu_seqlens_k = cu_seqlens_k,
                .seqused_q = seqused_q,
                .seqused_k = seqused_k,
                .query_start = query_start};
    }
};

struct DistributedCase {
    std::string text;
    DType dtype = DType::f32;
    std::int64_t batch = 1, heads = 2, kv_heads = 1, q_len = 90, kv_len = 90;
    int head_dim = 8, head_dim_v = 8;
    std::map<std::string, std::int64_t> dims = {};
    // Of a buffer's element at its flat position; default: position % 5.
    std::map<std::string, std::function<std::int64_t(std::int64_t)>> integers = {};
    bool with_d_lse = false;
    bool backward = true;
    GradientType gradient_type = GradientType::f32;
    std::vector<ShardedBuffer> sharded = {};
    Device device = Device::cpu(); // of all ranks
    bool deterministic = false;
    std::optional<RaggedCase> ragged = {};
};

// As doubles, of the whole problem.
struct Outcome {
    std::string error; // of the first rank that has one
    std::vector<std::string> errors;
    std::vector<double> o, lse, dq, dk, dv;
    std::map<std::string, std::vector<double>> d_buffers;
    std::map<std::string, std::vector<double>> d_sharded; // put together from all ranks
    // What each rank returned as the gradients of buffers.
    std::vector<std::map<std::string, std::vector<double>>> of_ranks;
};

// How a call differs from the usual one.
struct RunOptions {
    Exchange exchange = Exchange::ring;
    GradientReduction reduction = GradientReduction::sum;
    DType o_type = DType::f32;
    double timeout_seconds = 60;
    std::uint64_t gathered_bytes = DistributedOptions{}.gathered_bytes;
    int ranks_per_node = 0;
    // Around the communicator of a rank.
    std::function<std::shared_ptr<Communicator>(std::shared_ptr<Communicator>)> wrap = {};
};

class DistributedProblem {
  public:
    DistributedProblem(DistributedCase one, std::uint32_t seed);

    const Answer& answer() const { return answer_; }
    const DistributedCase& what() const { return case_; }
    const Kernel& kernel() const { return *kernel_; }
    const DistributedKernel& distributed() const { return distributed_; }
    const std::vector<NamedTensor>& buffers() const { return buffer_views_; }
    Sizes sizes() const; // of a call on one rank
    DistributedSizes sizes(const Shards& queries, const Shards& keys) const;

    Outcome on_one_rank(DType o_type = DType::f32) const;
    // Each rank in a thread of its own.
    Outcome on_ranks(const Shards& queries, const Shards& keys,
                     const RunOptions& options = {}) const;

    // What one rank does; its part of the outcome, which on_ranks() makes the whole of.
    Result<void> on_rank(const std::shared_ptr<Communicator>& communicator, const Shards& queries,
                         const Shards& keys, const RunOptions& options, Outcome& outcome) const;
    Outcome empty_outcome(int ranks) const;

    // Of an outcome against the answer: relative errors in the 2-norm, by tensor.
    std::map<std::string, double> errors(const Outcome& outcome) const;
    // Rows that see nothing have o = 0 and lse = -inf, in both; "" when lse is right elsewhere too.
    std::string compare_lse(const Outcome& outcome) const;
    // The largest relative error of a weight that the rounding of lse to f32 makes; at least that
    // of an lse of 4.
    double rounding_of_lse() const;

    // The same case with other values.
    DistributedProblem drawn_again(std::uint32_t draw) const {
        return DistributedProblem(case_, seed_ + draw);
    }

  private:
    DistributedCase case_;
    std::uint32_t seed_;
    Problem problem_;
    Answer answer_;
    std::shared_ptr<Kernel> kernel_;
    DistributedKernel distributed_;
    struct Buffer {
        std::string name;
        std::vector<std::int64_t> shape;
        std::vector<std::byte> bytes;
        DType dtype;
        bool grad;
        int sharded_dim = -1; // of many ranks
        bool is_query = false;
    };
    std::vector<Buffer> buffers_;
    std::vector<NamedTensor> buffer_views_;
};

// Errors of `many` at most 1.1 times those of `one`, twice those for gradients of buffers of few
// elements, or what f32 leaves of weights that are made from an lse; "" or what differs.
std::string compare(const DistributedProblem& problem, const Outcome& many, const Outcome& one);

// The same of what a run of the problem gives. Errors in which few elements weigh are two draws, of
// which one may be larger by chance: if one is, those of other draws of the problem are compared.
// anyone: of processes that run together, whether one of them says so.
using Run = std::function<Outcome(const DistributedProblem&)>;
std::string compare_runs(const DistributedProblem& problem, const Run& many, const Run& one,
                         const std::function<bool(bool)>& anyone = {});

} // namespace flexc::test
