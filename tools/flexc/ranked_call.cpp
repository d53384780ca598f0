#include "flexc/ranked_call.h"

#include <string_view>

#include "flexc/command.h"
#include "flexc/stopwatch.h"

namespace flexc::cli {
namespace {

constexpr const char* kOutputs[] = {"o", "lse", "dq", "dk", "dv"};

} // namespace

std::vector<std::int64_t> RankTensor::shape(std::int64_t rows) const {
    std::vector<std::int64_t> shape = {batch, heads, rows};
    if (is_packed) {
        shape = {rows, heads};
    }
    if (columns != 0) {
        shape.push_back(columns);
    }
    return shape;
}

TensorView RankTensor::view(int rank) {
    void* const data = memory.data() != nullptr ? memory.data() : bytes.data();
    return TensorView::contiguous(bytes.empty() ? nullptr : data, dtype, shape(shards->rows(rank)));
}

RankedCall::RankedCall(RankedProblem problem, std::shared_ptr<Communicator> communicator,
                       const RankOption& option)
    : problem_(std::move(problem)), communicator_(std::move(communicator)),
      rank_(communicator_->rank()) {
    compile_ms_ = milliseconds(
        [&] { kernel_ = value_of(compile_distributed(problem_.text, problem_.options)); });
    const std::string_view exchange = option.exchange;
    // Wherever keys travel, across nodes too; a ring by itself is what zigzag is told from.
    is_zigzag_ = (exchange != "ring" && exchange != "ulysses") || option.ranks_per_node > 0;
    follows_mask_ = exchange == "auto" || exchange == "gather";
    options_.exchange = exchange == "auto"      ? Exchange::automatic
                        : exchange == "gather"  ? Exchange::all_gather
                        : exchange == "ulysses" ? Exchange::ulysses
                                                : Exchange::ring;
    options_.ranks_per_node = option.ranks_per_node;
    options_.scale = problem_.scale;
    options_.lengths = problem_.shape.lengths.view();
    for (const auto& [name, value] : problem_.params) {
        params_.push_back({name, value});
    }
    options_.params = params_;
}

void RankedCall::deal() {
    for (auto& buffer : buffers_) {
        const auto& info = buffer.info;
        buffer_views_.push_back(
            {info.name,
             TensorView::read_only(place(buffer.bytes, buffer.memory), info.dtype, buffer.shape)});
    }
    const int ranks = communicator_->ranks();
    const auto& shape = problem_.shape;
    const bool is_ragged = shape.query_layout == Layout::ragged;
    const std::int64_t queries = is_ragged ? shape.q_rows : shape.sizes.q_len;
    const std::int64_t keys = is_ragged ? shape.kv_rows : shape.sizes.kv_len;
    // Requests differ in length, so that what rows see does not grow with their position.
    if (follows_mask_ && is_ragged && queries == keys) {
        dealt_ = "balanced";
        auto sizes = shape.sizes;
        sizes.q_len = sizes.kv_len = queries;
        queries_ = keys_ = value_of(kernel_.balanced_shards(sizes, ranks, buffer_views_, options_));
        return;
    }
    dealt_ = is_zigzag_ ? "zigzag" : "contiguous";
    const auto dealt = is_zigzag_ ? &Shards::zigzag : &Shards::contiguous;
    queries_ = value_of(dealt(queries, ranks));
    keys_ = value_of(dealt(keys, ranks));
}

RankTensor& RankedCall::add(const std::string& name, DType dtype, bool is_query,
                            std::int64_t columns) {
    const auto& sizes = problem_.shape.sizes;
    const bool is_packed = problem_.shape.query_layout == Layout::ragged;
    auto& tensor = tensors_[name];
    tensor = {.name = name,
              .dtype = dtype,
              .batch = is_packed ? 1 : sizes.batch,
              .heads = is_query ? sizes.heads : sizes.kv_heads,
              .columns = columns,
              .is_packed = is_packed,
              .shards = is_query ? &queries_ : &keys_,
              .bytes = {},
              .memory = {}};
    tensor.bytes.resize(tensor.bytes_of(tensor.shards->rows(rank_)));
    return tensor;
}

TensorView RankedCall::view(const std::string& name) {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? TensorView{} : found->second.view(rank_);
}

RankTensor& RankedCall::add_input(const std::string& name) {
    const auto& shape = problem_.shape;
    if (name == "dlse") {
        return add(name, DType::f32, true, 0);
    }
    const bool is_query = name == "q" || name == "do";
    return add(name, shape.dtype, is_query,
               name == "q" || name == "k" ? shape.head_dim : shape.head_dim_v);
}

void RankedCall::add_buffer(const BufferInfo& info, std::vector<std::int64_t> shape,
                            std::vector<std::byte> bytes) {
    buffers_.push_back({info, std::move(shape), std::move(bytes), {}, {}});
}

void* RankedCall::place(std::vector<std::byte>& bytes, DeviceMemory& memory) const {
    if (!is_on_gpu() || bytes.empty()) {
        return bytes.data();
    }
    memory = value_of(DeviceMemory::allocate(problem_.options.device, bytes.size()));
    require(memory.upload(bytes.data(), bytes.size()));
    return memory.data();
}

void RankedCall::prepare() {
    const auto& shape = problem_.shape;
    add("o", problem_.output_type, true, shape.head_dim_v);
    add("lse", DType::f32, true, 0);
    if (problem_.backward) {
        add("dq", shape.dtype, true, shape.head_dim);
        add("dk", shape.dtype, false, shape.head_dim);
        add("dv", shape.dtype, false, shape.head_dim_v);
    }
    for (auto& [name, tensor] : tensors_) {
        place(tensor.bytes, tensor.memory);
    }
    for (auto& buffer : buffers_) {
        const auto& info = buffer.info;
        if (!info.grad || !problem_.backward) {
            continue;
        }
        const auto dtype =
            problem_.options.gradient_type == GradientType::buffer ? info.dtype : DType::f32;
        OutputTensor gradient{
            .name = "d." + info.name, .dtype = dtype, .shape = buffer.shape, .bytes = {}};
        gradient.bytes.resize(buffer.bytes.size() / size_of(info.dtype) * size_of(dtype));
        gradients_.push_back(std::move(gradient));
        void* const data = place(gradients_.back().bytes, buffer.gradient_memory);
        gradient_views_.push_back({info.name, TensorView::contiguous(data, dtype, buffer.shape)});
    }
    const auto& sizes = shape.sizes;
    plan_ = value_of(kernel_.plan({.batch = sizes.batch,
                                   .heads = sizes.heads,
                                   .kv_heads = sizes.kv_heads,
                                   .queries = queries_,
                                   .keys = keys_},
                                  communicator_, buffer_views_, options_));
}

void RankedCall::forward() {
    require(kernel_.forward(plan_, {view("q"), view("k"), view("v"), view("o"), view("lse")},
                            buffer_views_));
}

void RankedCall::backward() {
    require(kernel_.backward(plan_,
                             {.q = view("q"),
                              .k = view("k"),
                              .v = view("v"),
                              .o = view("o"),
                              .lse = view("lse"),
                              .d_out = view("do"),
                              .d_lse = view("dlse"),
                              .dq = view("dq"),
                              .dk = view("dk"),
                              .dv = view("dv")},
                             buffer_views_, gradient_views_));
}

void RankedCall::synchronize() const { require(flexc::synchronize(problem_.options.device)); }

void RankedCall::fetch() {
    if (!is_on_gpu()) {
        return;
    }
    synchronize();
    for (const char* name : kOutputs) {
        if (const auto found = tensors_.find(name); found != tensors_.end()) {
            auto& tensor = found->second;
            require(tensor.memory.download(tensor.bytes.data(), tensor.bytes.size()));
        }
    }
    auto gradient = gradients_.begin();
    for (const auto& buffer : buffers_) {
        if (buffer.gradient_memory.data() != nullptr) {
            require(
                buffer.gradient_memory.download(gradient->bytes.data(), gradient->bytes.size()));
            ++gradient;
        }
    }
}

std::vector<const RankTensor*> RankedCall::outputs() const {
    std::vector<const RankTensor*> outputs;
    for (const char* name : kOutputs) {
        if (const auto found = tensors_.find(name); found != tensors_.end()) {
            outputs.push_back(&found->second);
        }
    }
    return outputs;
}

} // namespace flexc::cli
