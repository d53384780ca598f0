#include "flexc/attention_call.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "flexc/command.h"
#include "flexc/host_memory.h"
#include "support/amounts.h"
#include "support/key_layout.h"
#include "support/text.h"

namespace flexc::cli {

Lengths RequestLengths::view() const {
    Lengths lengths{.query_start = query_start};
#define FLEXC_LENGTH_ARRAY(name, dims) lengths.name = name;
#define FLEXC_LENGTH_SIZE(name) lengths.name = name;
#include "common/lengths.def"
    return lengths;
}

namespace {

std::vector<std::int64_t> of_queries(const ProblemShape& shape, std::int64_t columns) {
    const auto& sizes = shape.sizes;
    if (shape.query_layout == Layout::ragged) {
        return {shape.q_rows, sizes.heads, columns};
    }
    return {sizes.batch, sizes.heads, sizes.q_len, columns};
}
std::vector<std::int64_t> of_keys(const ProblemShape& shape, std::int64_t columns) {
    const auto& layout = support::key_layout(shape.key_layout);
    std::vector<std::int64_t> extents;
    for (const auto axis : layout.axes) {
        switch (axis) {
        case support::KeyAxis::entry:
            extents.push_back(layout.is_in_order ? shape.sizes.batch : shape.kv_entries);
            break;
        case support::KeyAxis::head: extents.push_back(shape.sizes.kv_heads); break;
        case support::KeyAxis::row:
            extents.push_back(shape.key_layout == Layout::dense ? shape.sizes.kv_len
                                                                : shape.kv_rows);
            break;
        case support::KeyAxis::column: extents.push_back(columns); break;
        }
    }
    return extents;
}

} // namespace

std::vector<std::int64_t> q_shape(const ProblemShape& shape) {
    return of_queries(shape, shape.head_dim);
}
std::vector<std::int64_t> k_shape(const ProblemShape& shape) {
    return of_keys(shape, shape.head_dim);
}
std::vector<std::int64_t> v_shape(const ProblemShape& shape) {
    return of_keys(shape, shape.head_dim_v);
}
std::vector<std::int64_t> o_shape(const ProblemShape& shape) {
    return of_queries(shape, shape.head_dim_v);
}
std::vector<std::int64_t> lse_shape(const ProblemShape& shape) {
    auto rows = of_queries(shape, 0);
    rows.pop_back();
    return rows;
}

std::map<std::string, std::int64_t> size_names(const ProblemShape& shape) {
    std::map<std::string, std::int64_t> names = {{"B", shape.sizes.batch},
                                                 {"Q_LEN", shape.sizes.q_len},
                                                 {"KV_LEN", shape.sizes.kv_len},
                                                 {"D", shape.head_dim},
                                                 {"DV", shape.head_dim_v}};
    if (!is_part(shape.part)) {
        names.insert({{"H", shape.sizes.heads}, {"H_KV", shape.sizes.kv_heads}});
    }
    return names;
}

AttentionCall::AttentionCall(Kernel kernel, ProblemShape shape, CallOptions options)
    : kernel_(std::move(kernel)), shape_(std::move(shape)), options_(std::move(options)) {
    for (const auto& [param, value] : options_.params) {
        params_.push_back({param, value});
    }
}

DeviceTensor AttentionCall::make(std::string tensor_name, DType dtype,
                                 std::span<const std::int64_t> shape,
                                 std::span<const std::byte> bytes) const {
    const auto elements =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, support::times<std::int64_t>);
    const auto size = support::times(static_cast<std::size_t>(elements), size_of(dtype));
    if (kernel_.device().kind == Device::Kind::cpu) {
        require(check_host_memory(size, formatted("tensor '{}'", tensor_name)));
    }
    DeviceTensor tensor;
    tensor.name = std::move(tensor_name);
    // A null pointer means that a tensor is absent, so an empty one needs at least one byte.
    tensor.memory =
        value_of(DeviceMemory::allocate(kernel_.device(), std::max<std::size_t>(size, 1)));
    if (!bytes.empty()) {
        require(tensor.memory.upload(bytes.data(), bytes.size()));
    }
    tensor.view = TensorView::contiguous(tensor.memory.data(), dtype, shape);
    return tensor;
}

DeviceTensor AttentionCall::make_rows(std::string tensor_name, DType dtype,
                                      std::span<const std::int64_t> shape,
                                      std::span<const std::byte> bytes) const {
    if (options_.strides == TensorStrides::bhsd || shape.size() != 4) {
        return make(std::move(tensor_name), dtype, shape, bytes);
    }
    if (options_.strides == TensorStrides::bshd) {
        auto tensor = make(std::move(tensor_name), dtype, shape, bytes);
        tensor.view.strides[1] = shape[3];
        tensor.view.strides[2] = shape[1] * shape[3];
        return tensor;
    }
    const std::array padded = {shape[0], shape[1], shape[2], shape[3] + 1};
    const auto row = static_cast<std::size_t>(shape[3]) * size_of(dtype);
    const auto padded_row = row + size_of(dtype);
    std::vector<std::byte> rows(bytes.size() / row * padded_row);
    for (std::size_t i = 0; i < bytes.size() / row; ++i) {
        std::ranges::copy(bytes.subspan(i * row, row),
                          rows.begin() + static_cast<std::ptrdiff_t>(i * padded_row));
    }
    auto tensor = make(std::move(tensor_name), dtype, padded, rows);
    tensor.view.shape[3] = shape[3];
    return tensor;
}

void AttentionCall::set(std::string_view tensor_name, std::span<const std::byte> bytes) {
    const auto put = [&](DeviceTensor& target, DType dtype, std::vector<std::int64_t> shape) {
        target = make_rows(std::string(tensor_name), dtype, shape, bytes);
    };
    if (tensor_name == "q") {
        put(q_, shape_.dtype, q_shape(shape_));
    }
    if (tensor_name == "k") {
        put(k_, shape_.kv_dtype.value_or(shape_.dtype), k_shape(shape_));
    }
    if (tensor_name == "v") {
        put(v_, shape_.kv_dtype.value_or(shape_.dtype), v_shape(shape_));
    }
    if (tensor_name == "do") {
        put(d_out_, shape_.dtype, o_shape(shape_));
    }
    if (tensor_name == "dlse") {
        put(d_lse_, DType::f32, lse_shape(shape_));
    }
}

void AttentionCall::set_scale(std::string_view tensor_name, std::span<const std::int64_t> shape,
                              std::span<const std::byte> bytes) {
    (tensor_name == "k_scale" ? k_scale_ : v_scale_) =
        make(std::string(tensor_name), DType::f32, shape, bytes);
}

void AttentionCall::add_buffer(const BufferInfo& info, std::span<const std::int64_t> shape,
                               std::span<const std::byte> bytes) {
    if (info.grad) {
        gradient_of_.push_back(buffers_.size());
    }
    buffers_.push_back(make(info.name, info.dtype, shape, bytes));
}

Result<Plan> AttentionCall::make_plan() const {
    PlanOptions options{.scale = options_.scale,
                        .params = params_,
                        .q_offset = options_.q_offset,
                        .global_q_len = options_.global_q_len,
                        .lengths = shape_.lengths.view()};
    apply(shape_.part, options);
    // A plan assumes contiguous tensors; others must be described.
    const auto forward = forward_tensors();
    const auto backward = backward_tensors();
    if (options_.strides != TensorStrides::bhsd) {
        options.forward = &forward;
        if (backward.dq) options.backward = &backward;
    }
    return kernel_.plan(shape_.sizes, buffer_views_, {}, options);
}

void AttentionCall::prepare(bool backward) {
    const auto o_type = options_.output_type == OutputType::f32 ? DType::f32 : shape_.dtype;
    outputs_.push_back(make_rows("o", o_type, o_shape(shape_), {}));
    outputs_.push_back(make("lse", DType::f32, lse_shape(shape_), {}));
    if (kernel_.options().max_scores) {
        outputs_.push_back(make("max_scores", DType::f32, lse_shape(shape_), {}));
    }
    if (backward) {
        outputs_.push_back(make_rows("dq", shape_.dtype, q_shape(shape_), {}));
        outputs_.push_back(make_rows("dk", shape_.dtype, k_shape(shape_), {}));
        outputs_.push_back(make_rows("dv", shape_.dtype, v_shape(shape_), {}));
        for (const auto index : gradient_of_) {
            const auto& view = buffers_[index].view;
            outputs_.push_back(make(
                "d." + buffers_[index].name,
                kernel_.options().gradient_type == GradientType::buffer ? view.dtype : DType::f32,
                std::span(view.shape).first(static_cast<std::size_t>(view.rank)), {}));
            gradient_views_.push_back({buffers_[index].name, outputs_.back().view});
        }
    }
    for (const auto& buffer : buffers_) {
        buffer_views_.push_back({buffer.name, buffer.view});
    }
    plan();
}

void AttentionCall::copy_lengths() {
    const auto copy = [&](const std::vector<std::int32_t>& numbers, TensorView& view) {
        if (numbers.empty()) {
            return;
        }
        const std::array shape = {static_cast<std::int64_t>(numbers.size())};
        length_arrays_.push_back(
            make("lengths", DType::i32, shape, std::as_bytes(std::span(numbers))));
        view = length_arrays_.back().view;
    };
    const RequestLengths& lengths = shape_.lengths;
#define FLEXC_LENGTH_ARRAY(name, dims) copy(lengths.name, length_views_.name);
#include "common/lengths.def"
}

void AttentionCall::plan() {
    plan_ = value_of(make_plan());
    if (plan_.workspace_bytes() > workspace_.bytes()) {
        workspace_ = value_of(DeviceMemory::allocate(kernel_.device(), plan_.workspace_bytes()));
    }
}

void AttentionCall::use(Kernel kernel) {
    kernel_ = std::move(kernel);
    plan();
}

TensorView AttentionCall::output(std::string_view tensor_name) const {
    for (const auto& tensor : outputs_) {
        if (tensor.name == tensor_name) {
            return tensor.view;
        }
    }
    return {};
}

ForwardTensors AttentionCall::forward_tensors() const {
    return {.q = q_.view,
            .k = k_.view,
            .v = v_.view,
            .o = output("o"),
            .lse = output("lse"),
            .k_scale = k_scale_.view,
            .v_scale = v_scale_.view,
            .max_scores = output("max_scores")};
}

BackwardTensors AttentionCall::backward_tensors() const {
    return {.q = q_.view,
            .k = k_.view,
            .v = v_.view,
            .o = output("o"),
            .lse = output("lse"),
            .d_out = d_out_.view,
            .d_lse = d_lse_.view,
            .dq = output("dq"),
            .dk = output("dk"),
            .dv = output("dv")};
}

Result<void> AttentionCall::forward() const {
    return kernel_.forward(plan_, forward_tensors(), buffer_views_,
                           {workspace_.data(), workspace_.bytes()});
}

Result<void> AttentionCall::backward() const {
    return kernel_.backward(plan_, backward_tensors(), buffer_views_, gradient_views_,
                            {workspace_.data(), workspace_.bytes()});
}

void AttentionCall::synchronize() const { require(flexc::synchronize(kernel_.device())); }

} // namespace flexc::cli
