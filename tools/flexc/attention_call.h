// All tensors of one attention problem on a device, and the calls on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flexc/compile.h"
#include "flexc/head_option.h"

namespace flexc::cli {

// The arrays to which a plan's Lengths points.
struct RequestLengths {
#define FLEXC_LENGTH_ARRAY(name, dims) std::vector<std::int32_t> name;
#include "common/lengths.def"
#define FLEXC_LENGTH_SIZE(name) std::int64_t name = 0;
#include "common/lengths.def"
    QueryStart query_start = QueryStart::automatic;

    Lengths view() const;
};

struct ProblemShape {
    Sizes sizes;
    int head_dim = 0, head_dim_v = 0;
    DType dtype = DType::bf16;
    std::optional<DType> kv_dtype; // of k and v, if it differs from that of q
    Layout query_layout = Layout::dense, key_layout = Layout::dense;
    std::int64_t q_rows = 0, kv_rows = 0; // of ragged tensors
    // For keys that are not in order: extent of the first dim, whose entries have kv_rows rows
    // each.
    std::int64_t kv_entries = 0;
    RequestLengths lengths;
    HeadOption part;
};

// Shapes of the fixed tensors.
std::vector<std::int64_t> q_shape(const ProblemShape& shape);
std::vector<std::int64_t> k_shape(const ProblemShape& shape);
std::vector<std::int64_t> v_shape(const ProblemShape& shape);
std::vector<std::int64_t> o_shape(const ProblemShape& shape);
std::vector<std::int64_t> lse_shape(const ProblemShape& shape);
// Returns the values of B, H, H_KV, Q_LEN, KV_LEN, D, DV, which a buffer's dims may use. For a part
// of the heads, H and H_KV are omitted: the plan checks these.
std::map<std::string, std::int64_t> size_names(const ProblemShape& shape);

struct DeviceTensor {
    std::string name;
    DeviceMemory memory;
    TensorView view;
};

enum class OutputType : std::uint8_t { input, f32 }; // type of o: that of q, or f32

// Memory order of dense tensors [B, H, S, D]: as named, as [B, S, H, D], or padded with one more
// element per row, which leaves most rows unaligned.
enum class TensorStrides : std::uint8_t { bhsd, bshd, padded };

struct CallOptions {
    std::optional<double> scale;
    std::vector<std::pair<std::string, double>> params;
    std::int64_t q_offset = 0;
    std::optional<std::int64_t> global_q_len;
    OutputType output_type = OutputType::input;
    TensorStrides strides = TensorStrides::bhsd; // of q, k, v, o and their gradients
};

class AttentionCall {
  public:
    AttentionCall(Kernel kernel, ProblemShape shape, CallOptions options);

    // Allocates the tensor and sets its bytes; to zeros if `bytes` is empty.
    void set(std::string_view tensor_name, std::span<const std::byte> bytes);
    // Sets k_scale or v_scale.
    void set_scale(std::string_view tensor_name, std::span<const std::int64_t> shape,
                   std::span<const std::byte> bytes);
    void add_buffer(const BufferInfo& info, std::span<const std::int64_t> shape,
                    std::span<const std::byte> bytes);

    // Allocates outputs and the workspace; called once, after the inputs are set.
    void prepare(bool backward);
    Result<Plan> make_plan() const;
    // Replaces the kernel by another one of the same program, types and device; keeps the tensors.
    void use(Kernel kernel);

    Result<void> forward() const;
    Result<void> backward() const;
    // Rebuilds the plan's block mask; block_mask_bytes() is 0 if there is none.
    Result<void> update_block_mask() const { return kernel_.update(plan_, buffer_views_); }
    std::size_t block_mask_bytes() const { return plan_.block_mask_bytes(); }
    // Updates the plan with the same lengths, for ragged and paged layouts.
    Result<void> update_lengths() const { return kernel_.update(plan_, shape_.lengths.view()); }
    // Likewise from arrays on the device, to which copy_lengths() copies them first.
    void copy_lengths();
    Result<void> update_lengths_on_device() const { return kernel_.update(plan_, length_views_); }
    void synchronize() const;

    const Kernel& kernel() const { return kernel_; }
    const ProblemShape& shape() const { return shape_; }
    // o, lse, max_scores if the kernel returns them, and after backward dq, dk, dv, d.NAME.
    const std::vector<DeviceTensor>& outputs() const { return outputs_; }

  private:
    void plan();
    DeviceTensor make(std::string tensor_name, DType dtype, std::span<const std::int64_t> shape,
                      std::span<const std::byte> bytes) const;
    // Makes q, k, v, o or one of their gradients, with the strides of options_.
    DeviceTensor make_rows(std::string tensor_name, DType dtype,
                           std::span<const std::int64_t> shape,
                           std::span<const std::byte> bytes) const;
    ForwardTensors forward_tensors() const;
    BackwardTensors backward_tensors() const;
    TensorView output(std::string_view tensor_name) const;

    Kernel kernel_;
    ProblemShape shape_;
    CallOptions options_;
    std::vector<ParamValue> params_;
    DeviceTensor q_, k_, v_, k_scale_, v_scale_, d_out_, d_lse_;
    std::vector<DeviceTensor> buffers_;
    std::vector<std::size_t> gradient_of_; // buffers with a gradient
    std::vector<DeviceTensor> outputs_;
    std::vector<NamedTensor> buffer_views_, gradient_views_;
    std::vector<DeviceTensor> length_arrays_;
    LengthTensors length_views_;
    Plan plan_;
    DeviceMemory workspace_;
};

} // namespace flexc::cli
