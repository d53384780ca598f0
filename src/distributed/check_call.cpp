#include "distributed/check_call.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "runtime/buffers.h"
#include "support/text.h"

namespace flexc::distributed {

namespace {

using detail::DistributedPlanState;

// What a tensor of this rank must be, by the plan.
struct Rule {
    const char* name;
    const TensorView* tensor;
    std::int64_t heads, rows;
    int columns; // 0: one number for each row
    bool is_f32 = false, may_be_f32 = false, is_written = false, is_optional = false;
};

Result<void> check(const DistributedPlanState& plan, const Rule& rule) {
    const TensorView& tensor = *rule.tensor;
    if (!tensor) {
        if (rule.is_optional || rule.rows == 0) return {};
        return runtime::invalid(formatted("{}: missing", rule.name));
    }
    const DType expected = rule.is_f32 ? DType::f32 : plan.kernel->kernel.options().dtype;
    if (tensor.dtype != expected && (!rule.may_be_f32 || tensor.dtype != DType::f32))
        return runtime::invalid(
            formatted("{}: expected type {}{}, got {}", rule.name, name(expected),
                      rule.may_be_f32 && !rule.is_f32 ? " or f32" : "", name(tensor.dtype)));
    if (auto checked = runtime::check_view(tensor, rule.name); !checked) return checked;
    std::vector<std::int64_t> wanted = {plan.sizes.batch, rule.heads, rule.rows};
    if (plan.requests) wanted = {rule.rows, rule.heads};
    if (rule.columns != 0) wanted.push_back(rule.columns);
    if (!std::ranges::equal(wanted, runtime::shape_of(tensor)))
        return runtime::invalid(formatted("{}: expected shape {}, got {}", rule.name,
                                          runtime::shape_text(wanted),
                                          runtime::shape_text(runtime::shape_of(tensor))));
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % size_of(tensor.dtype) != 0)
        return runtime::invalid(formatted("{}: the pointer is not aligned to its {} elements",
                                          rule.name, name(tensor.dtype)));
    if (rule.is_written) return runtime::check_writable(tensor, rule.name);
    return {};
}

Result<void> check_all(const DistributedPlanState& plan, std::span<const Rule> rules) {
    for (const Rule& rule : rules)
        if (auto checked = check(plan, rule); !checked) return checked;
    return {};
}

Result<void> check_lengths(const LengthTensors* lengths) {
    if (lengths == nullptr) return {};
    return runtime::invalid("lengths: across ranks, they are given to the plan");
}

// The address of tensors without elements, which the caller may leave out.
alignas(16) std::byte nothing[16];

} // namespace

std::vector<NamedTensor> completed(const DistributedPlanState& plan,
                                   std::span<const NamedTensor> given, bool are_gradients) {
    std::vector<NamedTensor> tensors(given.begin(), given.end());
    if (plan.requests && !are_gradients)
        std::ranges::copy(plan.requests->buffers(), std::back_inserter(tensors));
    for (const Sharded& sharded : plan.sharded) {
        const std::int64_t rows = sharded.shape[sharded.dim];
        if (rows > 0 || (are_gradients && !sharded.grad)) continue;
        std::erase_if(tensors,
                      [&](const NamedTensor& tensor) { return tensor.name == sharded.name; });
        const bool is_f32 = are_gradients && plan.kernel->gradient_type == GradientType::f32;
        tensors.push_back(
            {sharded.name, sharded.view(nothing, is_f32 ? DType::f32 : sharded.dtype, 0)});
    }
    return tensors;
}

Result<void> check_forward(const DistributedPlanState& plan, const ForwardTensors& tensors,
                           std::span<const NamedTensor> buffers) {
    const CompileOptions& options = plan.kernel->kernel.options();
    const std::int64_t heads = plan.sizes.heads, kv_heads = plan.sizes.kv_heads;
    const int d = options.head_dim, dv = options.head_dim_v;
    const Rule rules[] = {{"q", &tensors.q, heads, plan.q_rows, d},
                          {"k", &tensors.k, kv_heads, plan.k_rows, d},
                          {"v", &tensors.v, kv_heads, plan.k_rows, dv},
                          {.name = "o",
                           .tensor = &tensors.o,
                           .heads = heads,
                           .rows = plan.q_rows,
                           .columns = dv,
                           .may_be_f32 = true,
                           .is_written = true},
                          {.name = "lse",
                           .tensor = &tensors.lse,
                           .heads = heads,
                           .rows = plan.q_rows,
                           .columns = 0,
                           .is_f32 = true,
                           .is_written = true,
                           .is_optional = true}};
    if (tensors.max_scores)
        return runtime::invalid("max_scores: attention across ranks gives no largest scores");
    if (auto checked = check_lengths(tensors.lengths); !checked) return checked;
    if (auto checked = check_all(plan, rules); !checked) return checked;
    std::array<TensorView, ir::kMaxBuffers> views;
    return runtime::find_buffers(plan.kernel->kernel.state().mod.program, plan.whole.size_values,
                                 buffers, views);
}

Result<void> check_backward(const DistributedPlanState& plan, const BackwardTensors& tensors,
                            std::span<const NamedTensor> buffers,
                            std::span<const NamedTensor> gradients, GradientViews& views) {
    const detail::KernelState& kernel = plan.kernel->kernel.state();
    if (!kernel.options.backward)
        return runtime::invalid(
            "this kernel was compiled without backward: set CompileOptions::backward");
    const std::int64_t heads = plan.sizes.heads, kv_heads = plan.sizes.kv_heads;
    const int d = kernel.options.head_dim, dv = kernel.options.head_dim_v;
    const auto written = [&](const char* label, const TensorView& tensor, std::int64_t of_heads,
                             std::int64_t rows, int columns) {
        return Rule{.name = label,
                    .tensor = &tensor,
                    .heads = of_heads,
                    .rows = rows,
                    .columns = columns,
                    .may_be_f32 = true,
                    .is_written = true};
    };
    const auto of_rows = [&](const char* label, const TensorView& tensor, bool is_optional) {
        return Rule{.name = label,
                    .tensor = &tensor,
                    .heads = heads,
                    .rows = plan.q_rows,
                    .columns = 0,
                    .is_f32 = true,
                    .is_optional = is_optional};
    };
    Rule o = written("o", tensors.o, heads, plan.q_rows, dv);
    o.is_written = false;
    const Rule rules[] = {{"q", &tensors.q, heads, plan.q_rows, d},
                          {"k", &tensors.k, kv_heads, plan.k_rows, d},
                          {"v", &tensors.v, kv_heads, plan.k_rows, dv},
                          o,
                          {"d_out", &tensors.d_out, heads, plan.q_rows, dv},
                          of_rows("lse", tensors.lse, false),
                          of_rows("d_lse", tensors.d_lse, true),
                          written("dq", tensors.dq, heads, plan.q_rows, d),
                          written("dk", tensors.dk, kv_heads, plan.k_rows, d),
                          written("dv", tensors.dv, kv_heads, plan.k_rows, dv)};
    if (auto checked = check_lengths(tensors.lengths); !checked) return checked;
    if (auto checked = check_all(plan, rules); !checked) return checked;
    GradientViews read;
    if (auto found =
            runtime::find_buffers(kernel.mod.program, plan.whole.size_values, buffers, read);
        !found)
        return found;
    return runtime::find_gradients(kernel.mod.program, plan.whole.size_values, gradients,
                                   plan.kernel->gradient_type, views);
}

} // namespace flexc::distributed
