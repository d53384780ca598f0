#include "runtime/bind.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "runtime/alignment.h"
#include "runtime/buffers.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

using detail::KernelState;
using detail::PlanState;
using Kind = passes::ArgumentSlot::Kind;

Result<void> check_lengths(const Sizes& sizes) {
    struct Row {
        const char* name;
        std::int64_t value;
    };
    for (const Row& row :
         {Row{"batch", sizes.batch}, Row{"heads", sizes.heads}, Row{"kv_heads", sizes.kv_heads},
          Row{"q_len", sizes.q_len}, Row{"kv_len", sizes.kv_len}})
        if (row.value < 1 || row.value >= analysis::kMaxLength)
            return invalid(formatted("{} is {}; it must be between 1 and {}", row.name, row.value,
                                     analysis::kMaxLength - 1));
    if (sizes.heads % sizes.kv_heads != 0)
        return invalid(formatted("{} query heads cannot share {} key/value heads evenly",
                                 sizes.heads, sizes.kv_heads));
    return {};
}

Result<std::vector<std::uint64_t>> bind_params(const ir::Program& program,
                                               std::span<const ParamValue> values) {
    for (const ParamValue& value : values) {
        bool known = false;
        for (const ir::Param& param : program.params)
            known = known || param.name == value.name;
        if (!known)
            return invalid(formatted("'{}' is not a parameter of this program", value.name));
    }
    std::vector<std::uint64_t> words;
    for (const ir::Param& param : program.params) {
        const ParamValue* given = nullptr;
        for (const ParamValue& value : values)
            if (value.name == param.name) given = &value;
        if (given == nullptr && !param.has_default)
            return invalid(formatted("parameter '{}' has no default: give it a value", param.name));
        const double value = given != nullptr ? given->value : param.default_value;
        if (param.type == ir::Type::real) {
            words.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(value)));
            continue;
        }
        if (value != std::trunc(value) || std::abs(value) > 9007199254740992.0 ||
            (param.type == ir::Type::boolean && value != 0 && value != 1))
            return invalid(formatted("parameter '{}' is {}; it must be {}", param.name, value,
                                     param.type == ir::Type::boolean ? "0 or 1" : "an integer"));
        words.push_back(static_cast<std::uint64_t>(static_cast<std::int64_t>(value)));
    }
    return words;
}

struct TensorRule {
    const char* name;
    const TensorView* tensor;
    std::array<std::int64_t, 4> shape;
    int rank;
    bool required;
    bool allows_f32; // beside the kernel's type
    bool requires_f32;
};

Result<void> check_tensor(const TensorRule& rule, DType kernel_dtype) {
    const TensorView& tensor = *rule.tensor;
    if (!tensor) {
        if (!rule.required) return {};
        return invalid(formatted("{}: missing", rule.name));
    }
    const DType expected = rule.requires_f32 ? DType::f32 : kernel_dtype;
    if (tensor.dtype != expected && (!rule.allows_f32 || tensor.dtype != DType::f32))
        return invalid(formatted("{}: expected type {}{}, got {}", rule.name, name(expected),
                                 rule.allows_f32 && expected != DType::f32 ? " or f32" : "",
                                 name(tensor.dtype)));
    const std::span<const std::int64_t> shape(rule.shape.data(),
                                              static_cast<std::size_t>(rule.rank));
    const auto got = shape_of(tensor);
    if (!std::equal(shape.begin(), shape.end(), got.begin(), got.end()))
        return invalid(formatted("{}: expected shape {}, got {}", rule.name, shape_text(shape),
                                 shape_text(got)));
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % size_of(tensor.dtype) != 0)
        return invalid(formatted("{}: the pointer is not aligned to its {} elements", rule.name,
                                 name(tensor.dtype)));
    return {};
}

TensorArgument argument(const TensorView& tensor) {
    TensorArgument result{};
    result.data = tensor.data;
    result.stride_b = tensor.strides[0];
    result.stride_h = tensor.strides[1];
    result.stride_s = tensor.strides[2];
    result.stride_d = tensor.rank > 3 ? tensor.strides[3] : 0;
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
    return arguments;
}

bool is_rounded(const KernelState& kernel, const ir::Buffer& buffer) {
    return buffer.grad && gradient_dtype(buffer, kernel.options.gradient_type) != DType::f32;
}

void fill_words(const KernelState& kernel, const PlanState& plan,
                std::span<const TensorView> buffers, BoundCall& call) {
    call.word_count = kernel.slots.size();
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
            }
            return 0;
        };
        call.words[i] = word();
    }
}

// Gradients of one buffer, as the kernels sum them.
TensorView sums_of(const PlanState& plan, const ir::Buffer& buffer) {
    std::vector<std::int64_t> shape;
    shape.reserve(buffer.dims.size());
    for (const ir::Dim& dim : buffer.dims)
        shape.push_back(dim.is_constant() ? dim.constant : plan.size_values[dim.size]);
    return TensorView::contiguous(nullptr, DType::f32, shape);
}

void find_workspace(const KernelState& kernel, PlanState& plan) {
    BoundCall shapes;
    shapes.attention = common_arguments(plan);
    shapes.word_count = kernel.slots.size(); // some backends copy them there
    const ir::Program& program = kernel.mod.program;
    std::size_t rounded_bytes = 0;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        if (!program.buffers[i].grad) continue;
        shapes.gradients[i] = sums_of(plan, program.buffers[i]);
        if (is_rounded(kernel, program.buffers[i]))
            rounded_bytes += aligned(bytes_of(shapes.gradients[i]));
    }
    const Call call = shapes.view({}, {});
    plan.workspace_bytes = kernel.executable->workspace_bytes(call, false);
    if (kernel.options.backward) {
        plan.gradient_offset = aligned(kernel.executable->workspace_bytes(call, true));
        plan.workspace_bytes = std::max(plan.workspace_bytes, plan.gradient_offset + rounded_bytes);
    }
    plan.map_bytes = kernel.executable->map_bytes(call);
}

// Sums that become gradients of other types are in the workspace.
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

Result<PlanState> bind_values(const ir::Program& program, int head_dim, int head_dim_v,
                              const Sizes& sizes, std::span<const NamedTensor> buffers,
                              const PlanOptions& options) {
    if (auto checked = check_lengths(sizes); !checked) return checked.error();
    PlanState plan;
    plan.sizes = sizes;
    plan.q_offset = options.q_offset;
    plan.kv_offset = options.kv_offset;
    plan.accumulate_gradients = options.accumulate_gradients;
    const std::int64_t q_len = options.global_q_len.value_or(options.q_offset + sizes.q_len);
    const std::int64_t kv_len = options.global_kv_len.value_or(options.kv_offset + sizes.kv_len);
    if (options.q_offset < 0 || options.kv_offset < 0 || options.q_offset + sizes.q_len > q_len ||
        options.kv_offset + sizes.kv_len > kv_len || q_len >= analysis::kMaxLength ||
        kv_len >= analysis::kMaxLength)
        return invalid(formatted(
            "rows {} to {} of Q_LEN {} and {} to {} of KV_LEN {}: offsets and lengths must lie "
            "inside the whole, which must be below {}",
            options.q_offset, options.q_offset + sizes.q_len, q_len, options.kv_offset,
            options.kv_offset + sizes.kv_len, kv_len, analysis::kMaxLength));
    plan.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));

    plan.size_values.assign(program.sizes.size(), kUnbound);
    plan.size_values[ir::kB] = sizes.batch;
    plan.size_values[ir::kH] = sizes.heads;
    plan.size_values[ir::kHKv] = sizes.kv_heads;
    plan.size_values[ir::kQLen] = q_len;
    plan.size_values[ir::kKvLen] = kv_len;
    plan.size_values[ir::kD] = head_dim;
    plan.size_values[ir::kDv] = head_dim_v;
    if (auto bound = bind_sizes(program, buffers, plan.size_values); !bound) return bound.error();
    auto params = bind_params(program, options.params);
    if (!params) return params.error();
    plan.param_words = std::move(*params);
    return plan;
}

Result<PlanState> bind_plan(const KernelState& kernel, const Sizes& sizes,
                            std::span<const NamedTensor> buffers, const PlanOptions& options) {
    auto plan = bind_values(kernel.mod.program, kernel.options.head_dim, kernel.options.head_dim_v,
                            sizes, buffers, options);
    if (!plan) return plan;
    for (std::size_t i = 0; i < plan->size_values.size(); ++i)
        if (plan->size_values[i] == kUnbound)
            return invalid(formatted("size '{}' is not known: pass the buffers to plan()",
                                     kernel.mod.program.sizes[i]));
    if (options.accumulate_gradients)
        for (const ir::Buffer& buffer : kernel.mod.program.buffers)
            if (is_rounded(kernel, buffer))
                return invalid(formatted("gradient of '{}': accumulate_gradients adds to f32, and "
                                         "gradient_type makes it {}",
                                         buffer.name, name(buffer.dtype)));
    find_workspace(kernel, *plan);
    return plan;
}

Call BoundCall::view(Workspace workspace, Stream stream) const {
    return {.attention = attention,
            .words = std::span(words).first(word_count),
            .gradients = gradients,
            .accumulate_gradients = accumulate_gradients,
            .workspace = workspace,
            .stream = stream};
}

bool bind_mask(const KernelState& kernel, const PlanState& plan,
               std::span<const NamedTensor> buffers, BoundCall& call) {
    const ir::Program& program = kernel.mod.program;
    std::array<TensorView, kMaxBuffers> views{};
    for (const ir::NodeId id : ir::reachable(program.graph, std::span(&kernel.mod.mask, 1))) {
        const ir::Node& node = program.graph[id];
        if (node.op != ir::Op::read) continue;
        const auto given =
            std::ranges::find(buffers, program.buffers[node.symbol].name, &NamedTensor::name);
        if (given == buffers.end() || !given->tensor) return false;
        views[node.symbol] = given->tensor;
    }
    call.attention = common_arguments(plan);
    fill_words(kernel, plan, views, call);
    return true;
}

Result<void> bind_forward(const KernelState& kernel, const PlanState& plan,
                          const ForwardTensors& tensors, std::span<const NamedTensor> buffers,
                          BoundCall& call) {
    const Sizes& n = plan.sizes;
    const std::int64_t d = kernel.options.head_dim;
    const std::int64_t dv = kernel.options.head_dim_v;
    const TensorRule rules[] = {
        {"q", &tensors.q, {n.batch, n.heads, n.q_len, d}, 4, true, false, false},
        {"k", &tensors.k, {n.batch, n.kv_heads, n.kv_len, d}, 4, true, false, false},
        {"v", &tensors.v, {n.batch, n.kv_heads, n.kv_len, dv}, 4, true, false, false},
        {"o", &tensors.o, {n.batch, n.heads, n.q_len, dv}, 4, true, true, false},
        {"lse", &tensors.lse, {n.batch, n.heads, n.q_len, 0}, 3, false, true, true}};
    for (const TensorRule& rule : rules)
        if (auto checked = check_tensor(rule, kernel.options.dtype); !checked) return checked;
    std::array<TensorView, kMaxBuffers> views;
    if (auto found = find_buffers(kernel.mod.program, plan.size_values, buffers, views); !found)
        return found;

    call.attention = common_arguments(plan);
    call.attention.q = argument(tensors.q);
    call.attention.k = argument(tensors.k);
    call.attention.v = argument(tensors.v);
    call.attention.o = argument(tensors.o);
    call.attention.lse = argument(tensors.lse);
    call.attention.o_flags = output_flags(tensors.o, false);
    fill_words(kernel, plan, views, call);
    return {};
}

Result<void> bind_backward(const KernelState& kernel, const PlanState& plan,
                           const BackwardTensors& tensors, std::span<const NamedTensor> buffers,
                           std::span<const NamedTensor> gradients, Workspace workspace,
                           BoundCall& call) {
    const Sizes& n = plan.sizes;
    const std::int64_t d = kernel.options.head_dim;
    const std::int64_t dv = kernel.options.head_dim_v;
    const bool add = plan.accumulate_gradients;
    const TensorRule rules[] = {
        {"q", &tensors.q, {n.batch, n.heads, n.q_len, d}, 4, true, false, false},
        {"k", &tensors.k, {n.batch, n.kv_heads, n.kv_len, d}, 4, true, false, false},
        {"v", &tensors.v, {n.batch, n.kv_heads, n.kv_len, dv}, 4, true, false, false},
        {"o", &tensors.o, {n.batch, n.heads, n.q_len, dv}, 4, true, true, false},
        {"lse", &tensors.lse, {n.batch, n.heads, n.q_len, 0}, 3, true, true, true},
        {"d_out", &tensors.d_out, {n.batch, n.heads, n.q_len, dv}, 4, true, false, false},
        {"d_lse", &tensors.d_lse, {n.batch, n.heads, n.q_len, 0}, 3, false, true, true},
        {"dq", &tensors.dq, {n.batch, n.heads, n.q_len, d}, 4, true, true, add},
        {"dk", &tensors.dk, {n.batch, n.kv_heads, n.kv_len, d}, 4, true, true, add},
        {"dv", &tensors.dv, {n.batch, n.kv_heads, n.kv_len, dv}, 4, true, true, add}};
    for (const TensorRule& rule : rules)
        if (auto checked = check_tensor(rule, kernel.options.dtype); !checked) return checked;
    std::array<TensorView, kMaxBuffers> views;
    if (auto found = find_buffers(kernel.mod.program, plan.size_values, buffers, views); !found)
        return found;
    if (auto found = find_gradients(kernel.mod.program, plan.size_values, gradients,
                                    kernel.options.gradient_type, call.gradients);
        !found)
        return found;
    place_sums(kernel, plan, workspace, call);

    call.attention = common_arguments(plan);
    call.attention.q = argument(tensors.q);
    call.attention.k = argument(tensors.k);
    call.attention.v = argument(tensors.v);
    call.attention.o = argument(tensors.o);
    call.attention.o_flags = output_flags(tensors.o, false);
    call.attention.lse = argument(tensors.lse);
    call.attention.d_out = argument(tensors.d_out);
    call.attention.d_lse = argument(tensors.d_lse);
    call.attention.dq = argument(tensors.dq);
    call.attention.dk = argument(tensors.dk);
    call.attention.dv = argument(tensors.dv);
    call.attention.dq_flags = output_flags(tensors.dq, add);
    call.attention.dk_flags = output_flags(tensors.dk, add);
    call.attention.dv_flags = output_flags(tensors.dv, add);
    fill_words(kernel, plan, views, call);
    call.accumulate_gradients = add;
    return {};
}

} // namespace flexc::runtime
