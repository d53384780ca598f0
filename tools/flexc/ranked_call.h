// One rank's tensors of an attention problem on many ranks, and the calls on them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flexc/attention_call.h"
#include "flexc/distributed.h"
#include "flexc/safetensors.h"

namespace flexc::cli {

struct RankedProblem {
    std::string text;
    CompileOptions options; // for the types of the tensors
    ProblemShape shape;
    std::optional<double> scale;
    std::vector<std::pair<std::string, double>> params;
    DType output_type = DType::f32; // of o
    bool backward = false;
};

// This rank's rows of a whole tensor: [B, H, S, columns], or packed [S, H, columns]; without the
// last where columns is 0.
struct RankTensor {
    std::string name;
    DType dtype = DType::f32;
    std::int64_t batch = 0, heads = 0, columns = 0; // batch: 1 of packed ones
    bool is_packed = false;
    const Shards* shards = nullptr;
    std::vector<std::byte> bytes;
    DeviceMemory memory; // on a GPU

    std::size_t row_bytes() const {
        return static_cast<std::size_t>(std::max<std::int64_t>(columns, 1) *
                                        (is_packed ? heads : 1)) *
               size_of(dtype);
    }
    // Of S rows that lie together.
    std::int64_t blocks() const { return is_packed ? 1 : batch * heads; }
    std::size_t bytes_of(std::int64_t rows) const {
        return static_cast<std::size_t>(blocks() * rows) * row_bytes();
    }
    std::vector<std::int64_t> shape(std::int64_t rows) const;
    TensorView view(int rank);

    // Calls visit(byte of the whole, byte of the rank's, bytes) for runs of rows without gaps.
    template <typename Visit> void each_run(int rank, Visit visit) const {
        std::size_t own = 0;
        for (std::int64_t block = 0; block < blocks(); ++block) {
            for (const auto& range : shards->ranges(rank)) {
                const auto begin =
                    static_cast<std::size_t>(block * shards->length() + range.begin) * row_bytes();
                const auto size = static_cast<std::size_t>(range.count()) * row_bytes();
                visit(begin, own, size);
                own += size;
            }
        }
    }
};

struct RankOption {
    std::string ranks = "one", exchange = "auto", nccl_id;
    int ranks_per_node = 0;
};

class RankedCall {
  public:
    RankedCall(RankedProblem problem, std::shared_ptr<Communicator> communicator,
               const RankOption& option);
    RankedCall(const RankedCall&) = delete;
    RankedCall& operator=(const RankedCall&) = delete;

    void add_buffer(const BufferInfo& info, std::vector<std::int64_t> shape,
                    std::vector<std::byte> bytes);
    // Once the buffers are there: which rows each rank has.
    void deal();
    // Then: q, k, v, do or dlse, of zeros for now; valid as long as the call.
    RankTensor& add_input(const std::string& name);
    // Once the inputs are there: makes the outputs and the plan.
    void prepare();

    void forward();
    void backward();
    // Until the device is done.
    void synchronize() const;
    // What calls wrote, to outputs() and gradients().
    void fetch();

    // contiguous, zigzag, or balanced by what the mask shows
    const char* shards() const { return dealt_; }
    double compile_ms() const { return compile_ms_; }
    const DistributedKernel& kernel() const { return kernel_; }
    const DistributedPlan& plan() const { return plan_; }
    Communicator& communicator() const { return *communicator_; }
    // o, lse, and after backward dq, dk, dv.
    std::vector<const RankTensor*> outputs() const;
    // d.NAME: the same on every rank.
    std::vector<OutputTensor>& gradients() { return gradients_; }

  private:
    RankTensor& add(const std::string& name, DType dtype, bool is_query, std::int64_t columns);
    TensorView view(const std::string& name);
    bool is_on_gpu() const { return problem_.options.device.kind == Device::Kind::cuda; }
    // Where kernels find such bytes.
    void* place(std::vector<std::byte>& bytes, DeviceMemory& memory) const;

    RankedProblem problem_;
    std::shared_ptr<Communicator> communicator_;
    int rank_;
    DistributedKernel kernel_;
    double compile_ms_ = 0;
    bool follows_mask_ = false; // what the exchange asks of the shards; else contiguous
    bool is_zigzag_ = false;
    const char* dealt_ = "contiguous";
    Shards queries_, keys_;
    DistributedOptions options_;
    std::vector<ParamValue> params_;
    DistributedPlan plan_;
    std::map<std::string, RankTensor> tensors_;
    struct Buffer {
        BufferInfo info;
        std::vector<std::int64_t> shape;
        std::vector<std::byte> bytes;
        DeviceMemory memory, gradient_memory; // on a GPU
    };
    std::vector<Buffer> buffers_;
    std::vector<NamedTensor> buffer_views_, gradient_views_;
    std::vector<OutputTensor> gradients_;
};

} // namespace flexc::cli
