#include "runtime/bind_call.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "ir/graph.h"
#include "runtime/alignment.h"
#include "runtime/buffers.h"
#include "runtime/tensor_rules.h"
#include "support/key_layout.h"
#include "support/text.h"

namespace flexc::runtime {

using detail::KernelState;
using detail::PlanState;
using support::KeyAxis;
using Kind = passes::ArgumentSlot::Kind;

namespace {

// Returns the pointer and strides of a tensor of queries or keys. Without columns, the tensor has
// one number for each query.
TensorArgument argument(const TensorView& tensor, Layout layout, bool has_columns = true) {
    TensorArgument result{};
    result.data = tensor.data;
    const auto& strides = tensor.strides;
    if (!tensor) return result;
    const std::span<const KeyAxis> axes = support::key_layout(layout).axes;
    for (std::size_t i = 0; i < axes.size(); ++i)
        switch (axes[i]) {
        case KeyAxis::entry: result.stride_b = strides[i]; break;
        case KeyAxis::head: result.stride_h = strides[i]; break;
        case KeyAxis::row: result.stride_s = strides[i]; break;
        case KeyAxis::column: result.stride_d = has_columns ? strides[i] : 0; break;
        }
    return result;
}

unsigned output_flags(const TensorView& tensor, bool accumulate) {
    return (tensor.dtype == DType::f32 ? kOutputF32 : 0u) | (accumulate ? kOutputAccumulate : 0u);
}

AttentionArguments common_arguments(const PlanState& plan) {
    AttentionArguments arguments{};
    arguments.q_offset = plan.q_offset;
    arguments.kv_offset = plan.kv_offset;
    arguments.batch = static_cast<int>(plan.sizes.batch);
    arguments.heads = static_cast<int>(plan.sizes.heads);
    arguments.kv_heads = static_cast<int>(plan.sizes.kv_heads);
    arguments.q_len = static_cast<int>(plan.sizes.q_len);
    arguments.kv_len = static_cast<int>(plan.sizes.kv_len);
    arguments.scale = static_cast<float>(plan.scale);
    arguments.q_rows = plan.q_rows;
    arguments.kv_rows = plan.kv_rows;
    return arguments;
}

ScaleArgument scale_argument(const TensorView& scale) {
    const auto stride = [&](int dim) {
        const auto at = static_cast<std::size_t>(dim);
        return scale.shape[at] == 1 ? 0 : scale.strides[at];
    };
    return {.data = static_cast<const float*>(scale.data),
            .stride_b = scale.rank == 2 ? stride(0) : 0,
            .stride_h = scale.rank == 0 ? 0 : stride(scale.rank - 1)};
}

Result<void> check_lengths_of(const KernelState& kernel, const BoundCall& call,
                              const LengthTensors* lengths) {
    if (lengths == nullptr || call.sequences == nullptr) return {};
    // Else the device has made its records from them.
    if (kernel.executable->reads_sequences_of_plan()) return {};
    return call.sequences->check_same(*lengths);
}

// Sets the arguments that a forward and a backward share.
template <typename Tensors>
void set_shared(const KernelState& kernel, const Tensors& tensors, AttentionArguments& attention) {
    const Layout queries = kernel.options.query_layout, keys = kernel.options.key_layout;
    attention.q = argument(tensors.q, queries);
    attention.k = argument(tensors.k, keys);
    attention.v = argument(tensors.v, keys);
    attention.o = argument(tensors.o, queries);
    attention.o_flags = output_flags(tensors.o, false);
    attention.lse = argument(tensors.lse, queries, false);
}

// Places sums of gradients that are rounded to another type in the workspace.
void place_sums(const KernelState& kernel, const PlanState& plan, Workspace workspace,
                BoundCall& call) {
    const ir::Program& program = kernel.mod.program;
    auto* at = static_cast<std::byte*>(workspace.data) + plan.gradient_offset;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        if (!is_rounded(kernel, program.buffers[i])) continue;
        call.rounded_gradients[i] = call.gradients[i];
        call.gradients[i].dtype = DType::f32; // contiguous, like the gradient
        call.gradients[i].data = at;
        at += aligned(bytes_of(call.gradients[i]));
    }
}

} // namespace

bool is_rounded(const KernelState& kernel, const ir::Buffer& buffer) {
    return buffer.grad && gradient_dtype(buffer, kernel.options.gradient_type) != DType::f32;
}

TensorView sums_of(const PlanState& plan, const ir::Buffer& buffer) {
    std::vector<std::int64_t> shape;
    shape.reserve(buffer.dims.size());
    for (const ir::Dim& dim : buffer.dims)
        shape.push_back(plan.extent(dim));
    return TensorView::contiguous(nullptr, DType::f32, shape);
}

void start_call(const PlanState& plan, BoundCall& call) {
    call.attention = common_arguments(plan);
    call.cpu_threads = plan.cpu_threads;
    call.variants = plan.variants;
    call.is_inside = plan.is_inside;
    if (plan.sequences == nullptr) return;
    call.sequences = plan.sequences->get();
    call.sequence_arguments = call.sequences->view();
    call.few_work = plan.sequences->known_work(*call.sequences);
    if (plan.sequences->memory != nullptr)
        call.attention.sequences = plan.sequences->device_view(plan.sizes, *call.sequences);
}

void fill_words(const KernelState& kernel, const PlanState& plan,
                std::span<const TensorView> buffers, BoundCall& call) {
    call.word_count = kernel.slots.size();
    std::size_t divisor_word = 0;
    for (std::size_t i = 0; i < kernel.slots.size(); ++i) {
        const passes::ArgumentSlot& slot = kernel.slots[i];
        auto word = [&]() -> std::uint64_t {
            switch (slot.kind) {
            case Kind::buffer_data: return std::bit_cast<std::uintptr_t>(buffers[slot.index].data);
            case Kind::buffer_extent:
                return static_cast<std::uint64_t>(buffers[slot.index].shape[slot.dim]);
            case Kind::buffer_stride:
                return static_cast<std::uint64_t>(buffers[slot.index].strides[slot.dim]);
            case Kind::gradient_data:
                return std::bit_cast<std::uintptr_t>(call.gradients[slot.index].data);
            case Kind::gradient_stride:
                return static_cast<std::uint64_t>(call.gradients[slot.index].strides[slot.dim]);
            case Kind::param: return plan.param_words[slot.index];
            case Kind::size: return static_cast<std::uint64_t>(plan.size_values[slot.index]);
            case Kind::out_of_range:
                return std::bit_cast<std::uintptr_t>(kernel.executable->out_of_range_flag());
            case Kind::first_kv_head: return 0;
            case Kind::sequences:
                return std::bit_cast<std::uintptr_t>(call.attention.sequences.sequences);
            case Kind::key_numbers:
                return std::bit_cast<std::uintptr_t>(call.attention.sequences.keys.numbers);
            case Kind::key_table_size:
                return static_cast<std::uint64_t>(call.attention.sequences.keys.size);
            case Kind::reciprocal:
            case Kind::divisor_sign: return plan.divisor_words[divisor_word++];
            }
            return 0;
        };
        call.words[i] = word();
    }
}

void set_arguments(const KernelState& kernel, const PlanState& plan, const ForwardTensors& tensors,
                   AttentionArguments& attention) {
    set_shared(kernel, tensors, attention);
    attention.k_scale = scale_argument(tensors.k_scale);
    attention.v_scale = scale_argument(tensors.v_scale);
    attention.max_scores = argument(tensors.max_scores, kernel.options.query_layout, false);
    if (kernel.options.query_layout == Layout::ragged) attention.q_rows = tensors.q.shape[0];
    if (kernel.options.key_layout == Layout::ragged)
        attention.kv_rows = std::min(tensors.k.shape[0], tensors.v.shape[0]);
    if (!kernel.executable->has_block_masks()) return;
    // Limits the rows to those that block masks have room for; no request has rows beyond these.
    attention.q_rows = std::min<long long>(attention.q_rows, plan.mask_q_rows);
    attention.kv_rows = std::min<long long>(attention.kv_rows, plan.mask_kv_rows);
}

void set_arguments(const KernelState& kernel, const PlanState& plan, const BackwardTensors& tensors,
                   AttentionArguments& attention) {
    const Layout queries = kernel.options.query_layout, keys = kernel.options.key_layout;
    const bool add = plan.accumulate_gradients;
    set_shared(kernel, tensors, attention);
    attention.d_out = argument(tensors.d_out, queries);
    attention.d_lse = argument(tensors.d_lse, queries, false);
    attention.dq = argument(tensors.dq, queries);
    attention.dk = argument(tensors.dk, keys);
    attention.dv = argument(tensors.dv, keys);
    attention.dq_flags = output_flags(tensors.dq, plan.accumulate_dq);
    attention.dk_flags = output_flags(tensors.dk, add);
    attention.dv_flags = output_flags(tensors.dv, add);
}

Result<void> set_tensors(const KernelState& kernel, const PlanState& plan,
                         const ForwardTensors& tensors, BoundCall& call) {
    const std::int64_t d = kernel.options.head_dim, dv = kernel.options.head_dim_v;
    const TensorRules rule(kernel, plan.sizes, call.sequences.get());
    const TensorRule rules[] = {rule.of_queries("q", tensors.q, d),
                                rule.of_keys("k", tensors.k, d),
                                rule.of_keys("v", tensors.v, dv),
                                written(or_f32(rule.of_queries("o", tensors.o, dv))),
                                written(optional(rule.of_rows("lse", tensors.lse))),
                                written(optional(rule.of_rows("max_scores", tensors.max_scores)))};
    if (tensors.max_scores && !kernel.options.max_scores)
        return invalid("max_scores: the kernel was compiled without them: set "
                       "CompileOptions::max_scores");
    if (auto checked = check_all(rules, kernel.options.dtype); !checked) return checked;
    if (auto checked = check_lengths_of(kernel, call, tensors.lengths); !checked) return checked;
    for (const auto& [name, scale] :
         {std::pair{"k_scale", tensors.k_scale}, std::pair{"v_scale", tensors.v_scale}})
        if (auto checked = rule.check_scale(name, scale); !checked) return checked;
    set_arguments(kernel, plan, tensors, call.attention);
    return {};
}

Result<void> set_tensors(const KernelState& kernel, const PlanState& plan,
                         const BackwardTensors& tensors, BoundCall& call) {
    const std::int64_t d = kernel.options.head_dim, dv = kernel.options.head_dim_v;
    const bool add = plan.accumulate_gradients;
    const TensorRules rule(kernel, plan.sizes, call.sequences.get());
    const TensorRule rules[] = {
        rule.of_queries("q", tensors.q, d),
        rule.of_keys("k", tensors.k, d),
        rule.of_keys("v", tensors.v, dv),
        or_f32(rule.of_queries("o", tensors.o, dv)),
        rule.of_rows("lse", tensors.lse),
        rule.of_queries("d_out", tensors.d_out, dv),
        optional(rule.of_rows("d_lse", tensors.d_lse)),
        written(or_f32(rule.of_queries("dq", tensors.dq, d)), plan.accumulate_dq),
        written(or_f32(rule.of_keys("dk", tensors.dk, d)), add),
        written(or_f32(rule.of_keys("dv", tensors.dv, dv)), add)};
    if (auto checked = check_all(rules, kernel.options.dtype); !checked) return checked;
    if (auto checked = check_lengths_of(kernel, call, tensors.lengths); !checked) return checked;
    set_arguments(kernel, plan, tensors, call.attention);
    return {};
}

Call BoundCall::view(Workspace workspace, Stream stream) const {
    return {.attention = attention,
            .sequences = sequences != nullptr ? &sequence_arguments : nullptr,
            .few_work = few_work,
            .words = std::span(words).first(word_count),
            .gradients = gradients,
            .rounded_gradients = rounded_gradients,
            .accumulate_gradients = accumulate_gradients,
            .cpu_threads = cpu_threads,
            .workspace = workspace,
            .stream = stream,
            .variants = variants,
            .is_inside = is_inside};
}

bool bind_mask(const KernelState& kernel, const PlanState& plan,
               std::span<const NamedTensor> buffers, BoundCall& call) {
    const ir::Program& program = kernel.mod.program;
    std::array<TensorView, ir::kMaxBuffers> views{};
    for (const ir::NodeId id : ir::reachable(program.graph, std::span(&kernel.mod.mask, 1))) {
        const ir::Node& node = program.graph[id];
        if (node.op != ir::Op::read) continue;
        const auto given =
            std::ranges::find(buffers, program.buffers[node.symbol].name, &NamedTensor::name);
        if (given == buffers.end() || !given->tensor) return false;
        views[node.symbol] = given->tensor;
    }
    call.attention = common_arguments(plan);
    call.cpu_threads = plan.cpu_threads;
    call.variants = plan.variants;
    fill_words(kernel, plan, views, call);
    return true;
}

namespace {

// Starts a call of either pass: what its tensors are, and the views of its buffers.
template <typename Tensors>
Result<void> bind_inputs(const KernelState& kernel, const PlanState& plan, const Tensors& tensors,
                         std::span<const NamedTensor> buffers,
                         std::array<TensorView, ir::kMaxBuffers>& views, BoundCall& call) {
    start_call(plan, call);
    if (auto set = set_tensors(kernel, plan, tensors, call); !set) return set;
    return find_buffers(kernel.mod.program, plan.size_values, buffers, views);
}

} // namespace

Result<void> bind_forward(const KernelState& kernel, const PlanState& plan,
                          const ForwardTensors& tensors, std::span<const NamedTensor> buffers,
                          BoundCall& call) {
    std::array<TensorView, ir::kMaxBuffers> views;
    if (auto bound = bind_inputs(kernel, plan, tensors, buffers, views, call); !bound) return bound;
    fill_words(kernel, plan, views, call);
    return {};
}

Result<void> bind_backward(const KernelState& kernel, const PlanState& plan,
                           const BackwardTensors& tensors, std::span<const NamedTensor> buffers,
                           std::span<const NamedTensor> gradients, Workspace workspace,
                           BoundCall& call) {
    std::array<TensorView, ir::kMaxBuffers> views;
    if (auto bound = bind_inputs(kernel, plan, tensors, buffers, views, call); !bound) return bound;
    if (auto found = find_gradients(kernel.mod.program, plan.size_values, gradients,
                                    kernel.options.gradient_type, call.gradients);
        !found)
        return found;
    place_sums(kernel, plan, workspace, call);
    fill_words(kernel, plan, views, call);
    call.accumulate_gradients = plan.accumulate_gradients;
    return {};
}

} // namespace flexc::runtime
