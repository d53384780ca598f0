#include "runtime/bind.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>

#include "common/reciprocal.h"
#include "cpu/work.h"
#include "ir/interp.h"
#include "runtime/alignment.h"
#include "runtime/buffers.h"
#include "runtime/heads.h"
#include "runtime/mask_values.h"
#include "runtime/size_checks.h"
#include "runtime/tensor_rules.h"
#include "support/key_layout.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

using detail::KernelState;
using detail::PlanState;
using support::KeyAxis;
using Kind = passes::ArgumentSlot::Kind;

Result<std::vector<std::uint64_t>> bind_params(const ir::Program& program,
                                               std::span<const ParamValue> values) {
    for (const ParamValue& value : values) {
        bool known = false;
        for (const ir::Param& param : program.params)
            known = known || (param.name == value.name && !is_of_heads(param));
        if (!known)
            return invalid(formatted("'{}' is not a parameter of this program", value.name));
    }
    std::vector<std::uint64_t> words;
    for (const ir::Param& param : program.params) {
        if (is_of_heads(param)) {
            words.push_back(0); // set_heads() has its value
            continue;
        }
        const ParamValue* given = nullptr;
        for (const ParamValue& value : values)
            if (value.name == param.name) given = &value;
        if (given == nullptr && !param.has_default)
            return invalid(formatted("parameter '{}' has no default: give it a value", param.name));
        const double value = given != nullptr ? given->value : param.default_value;
        if (param.type == ir::Type::real) {
            if (std::isfinite(value) && std::isinf(static_cast<float>(value)))
                return invalid(
                    formatted("parameter '{}' is {}; it must fit in f32", param.name, value));
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

bool is_rounded(const KernelState& kernel, const ir::Buffer& buffer) {
    return buffer.grad && gradient_dtype(buffer, kernel.options.gradient_type) != DType::f32;
}

// Finds the words of divisors that sizes and params determine.
void find_divisors(const KernelState& kernel, PlanState& plan) {
    std::optional<ir::Environment> environment;
    for (const passes::ArgumentSlot& slot : kernel.slots) {
        if (slot.kind != Kind::reciprocal && slot.kind != Kind::divisor_sign) continue;
        const ir::Program& program = kernel.mod.program;
        if (!environment)
            environment = MaskValues(program, plan.size_values, plan.param_words, {}).of_head(0, 0);
        const std::int64_t divisor = ir::evaluate_integer(program, slot.index, *environment);
        plan.divisor_words.push_back(
            slot.kind == Kind::reciprocal
                ? std::bit_cast<std::uint64_t>(reciprocal_of(divisor))
                : static_cast<std::uint64_t>(std::int64_t{sign_of(divisor)}));
    }
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

// Returns the tensor in which kernels sum the gradient of one buffer.
TensorView sums_of(const PlanState& plan, const ir::Buffer& buffer) {
    std::vector<std::int64_t> shape;
    shape.reserve(buffer.dims.size());
    for (const ir::Dim& dim : buffer.dims)
        shape.push_back(plan.extent(dim));
    return TensorView::contiguous(nullptr, DType::f32, shape);
}

void start(const PlanState& plan, BoundCall& call) {
    call.attention = common_arguments(plan);
    call.cpu_threads = plan.cpu_threads;
    call.variants = plan.variants;
    if (plan.sequences == nullptr) return;
    call.sequences = plan.sequences->get();
    call.sequence_arguments = call.sequences->view();
    call.few_work = plan.sequences->known_work(*call.sequences);
    if (plan.sequences->memory != nullptr)
        call.attention.sequences = plan.sequences->device_view(plan.sizes, *call.sequences);
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
    if (kernel.executable->reads_sequences_of_plan())
        return Error{ErrorCode::unsupported,
                     "lengths of a call are compared with the plan's on a CPU alone: leave them "
                     "out, and update() the plan"};
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

void set_checked(const KernelState& kernel, const PlanState& plan, const ForwardTensors& tensors,
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

void set_checked(const KernelState& kernel, const PlanState& plan, const BackwardTensors& tensors,
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
    set_checked(kernel, plan, tensors, call.attention);
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
    set_checked(kernel, plan, tensors, call.attention);
    return {};
}

// Returns the tensor that plan() assumes if the caller does not describe it: contiguous, at an
// aligned address that is never read.
TensorView assumed(DType dtype, std::span<const std::int64_t> shape) {
    return TensorView::contiguous(std::bit_cast<void*>(std::uintptr_t{kAlignment}), dtype, shape);
}

BackwardTensors assumed_tensors(const KernelState& kernel, const PlanState& plan) {
    BoundCall call;
    start(plan, call);
    const TensorRules rule(kernel, plan.sizes, call.sequences.get());
    const DType dtype = kernel.options.dtype;
    const std::int64_t d = kernel.options.head_dim, dv = kernel.options.head_dim_v;
    const DType of_gradients = plan.accumulate_gradients ? DType::f32 : dtype;
    const DType of_keys = kernel.options.kv_dtype.value_or(dtype);
    BackwardTensors tensors;
    const auto like = [](const TensorRule& one, DType type) {
        return assumed(type, std::span(one.shape).first(static_cast<std::size_t>(one.rank)));
    };
    tensors.q = like(rule.of_queries("q", tensors.q, d), dtype);
    tensors.k = like(rule.of_keys("k", tensors.k, d), of_keys);
    tensors.v = like(rule.of_keys("v", tensors.v, dv), of_keys);
    tensors.o = tensors.d_out = like(rule.of_queries("o", tensors.o, dv), dtype);
    tensors.lse = like(rule.of_rows("lse", tensors.lse), DType::f32);
    tensors.dq =
        like(rule.of_queries("dq", tensors.dq, d), plan.accumulate_dq ? DType::f32 : dtype);
    tensors.dk = like(rule.of_keys("dk", tensors.dk, d), of_gradients);
    tensors.dv = like(rule.of_keys("dv", tensors.dv, dv), of_gradients);
    return tensors;
}

// Replaces the assumed tensor by the given one. For layouts of requests only if ranks match: rows
// change with the lengths, so calls check these tensors.
void expect(TensorView& usual, const TensorView& given, bool is_dense) {
    if (given && (is_dense || given.rank == usual.rank)) usual = given;
}
ForwardTensors expected(const ForwardTensors& usual, const ForwardTensors& given, bool is_dense) {
    ForwardTensors tensors = usual;
    for (TensorView ForwardTensors::* const one :
         {&ForwardTensors::q, &ForwardTensors::k, &ForwardTensors::v, &ForwardTensors::o,
          &ForwardTensors::lse})
        expect(tensors.*one, given.*one, is_dense);
    return tensors;
}
BackwardTensors expected(const BackwardTensors& usual, const BackwardTensors& given,
                         bool is_dense) {
    BackwardTensors tensors = usual;
    for (TensorView BackwardTensors::* const one :
         {&BackwardTensors::q, &BackwardTensors::k, &BackwardTensors::v, &BackwardTensors::o,
          &BackwardTensors::lse, &BackwardTensors::d_out, &BackwardTensors::d_lse,
          &BackwardTensors::dq, &BackwardTensors::dk, &BackwardTensors::dv})
        expect(tensors.*one, given.*one, is_dense);
    return tensors;
}

// Sets the given buffers in the call, and the assumed ones for all others.
void expect_buffers(const KernelState& kernel, const PlanState& plan,
                    std::span<const NamedTensor> given, bool backward, BoundCall& call) {
    const ir::Program& program = kernel.mod.program;
    std::array<TensorView, ir::kMaxBuffers> views{};
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        const ir::Buffer& buffer = program.buffers[i];
        const auto named = std::ranges::find(given, buffer.name, &NamedTensor::name);
        const TensorView sums = sums_of(plan, buffer);
        views[i] = named != given.end() && named->tensor ? named->tensor
                                                         : assumed(buffer.dtype, shape_of(sums));
        if (backward && buffer.grad) call.gradients[i] = assumed(DType::f32, shape_of(sums));
    }
    call.accumulate_gradients = backward && plan.accumulate_gradients;
    fill_words(kernel, plan, views, call);
}

Result<void> choose_variants(const KernelState& kernel, PlanState& plan,
                             std::span<const NamedTensor> buffers, const PlanOptions& options) {
    const BackwardTensors usual = assumed_tensors(kernel, plan);
    BoundCall forward, backward;
    const auto set = [&](const auto& of_pass, const auto* given, BoundCall& call) -> Result<void> {
        start(plan, call);
        const bool is_dense = plan.sequences == nullptr;
        const auto tensors = given == nullptr ? of_pass : expected(of_pass, *given, is_dense);
        if (is_dense) return set_tensors(kernel, plan, tensors, call);
        set_checked(kernel, plan, tensors, call.attention);
        return {};
    };
    const ForwardTensors usual_forward = {usual.q, usual.k, usual.v, usual.o, usual.lse};
    if (auto done = set(usual_forward, options.forward, forward); !done) return done;
    expect_buffers(kernel, plan, buffers, false, forward);
    const bool has_backward = kernel.options.backward;
    if (has_backward) {
        if (auto done = set(usual, options.backward, backward); !done) return done;
        expect_buffers(kernel, plan, buffers, true, backward);
    }
    const Call backward_call = backward.view({}, {});
    auto chosen =
        kernel.executable->choose(forward.view({}, {}), has_backward ? &backward_call : nullptr,
                                  visible_keys(kernel.mod, plan));
    if (!chosen) return chosen.error();
    plan.variants = *chosen;
    return {};
}

void find_workspace(const KernelState& kernel, PlanState& plan) {
    BoundCall shapes;
    start(plan, shapes);
    shapes.word_count = kernel.slots.size(); // some backends copy them there
    const ir::Program& program = kernel.mod.program;
    std::size_t rounded_bytes = 0;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        if (!program.buffers[i].grad) continue;
        shapes.gradients[i] = sums_of(plan, program.buffers[i]);
        if (is_rounded(kernel, program.buffers[i]))
            rounded_bytes = support::plus(rounded_bytes, aligned(bytes_of(shapes.gradients[i])));
    }
    const Call call = shapes.view({}, {});
    plan.workspace_bytes = kernel.executable->workspace_bytes(call, false);
    if (kernel.options.backward) {
        plan.gradient_offset = aligned(kernel.executable->workspace_bytes(call, true));
        plan.workspace_bytes =
            std::max(plan.workspace_bytes, support::plus(plan.gradient_offset, rounded_bytes));
    }
    shapes.attention.q_rows = plan.mask_q_rows;
    shapes.attention.kv_rows = plan.mask_kv_rows;
    plan.block_mask_bytes = kernel.executable->block_mask_bytes(shapes.view({}, {}));
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

Result<PlanState> bind_values(const ir::Program& program, int head_dim, int head_dim_v,
                              const Sizes& sizes, std::span<const NamedTensor> buffers,
                              const PlanOptions& options) {
    if (auto checked = check_lengths(sizes, program.is_dense(), head_dim, head_dim_v); !checked)
        return checked.error();
    if (options.cpu_threads.count < 0)
        return invalid(formatted("cpu_threads.count is {}; 0 stands for the kernel's own",
                                 options.cpu_threads.count));
    PlanState plan;
    plan.sizes = sizes;
    plan.q_offset = options.q_offset;
    plan.kv_offset = options.kv_offset;
    plan.accumulate_gradients = options.accumulate_gradients;
    plan.accumulate_dq = options.accumulate_gradients && !options.replace_dq;
    plan.cpu_threads = options.cpu_threads;
    if (!program.is_dense() && (options.q_offset != 0 || options.kv_offset != 0 ||
                                options.global_q_len || options.global_kv_len))
        return invalid("offsets and global lengths are of dense layouts; query_starts says where "
                       "the queries of a request begin");
    const std::int64_t q_end = support::plus(options.q_offset, sizes.q_len);
    const std::int64_t kv_end = support::plus(options.kv_offset, sizes.kv_len);
    const std::int64_t q_len = options.global_q_len.value_or(q_end);
    const std::int64_t kv_len = options.global_kv_len.value_or(kv_end);
    if (options.q_offset < 0 || options.kv_offset < 0 || q_end > q_len || kv_end > kv_len ||
        q_len >= analysis::kMaxLength || kv_len >= analysis::kMaxLength)
        return invalid(formatted(
            "rows {} to {} of Q_LEN {} and {} to {} of KV_LEN {}: offsets and lengths must lie "
            "inside the whole, which must be below {}",
            options.q_offset, q_end, q_len, options.kv_offset, kv_end, kv_len,
            analysis::kMaxLength));
    plan.scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
    if (!std::isfinite(static_cast<float>(plan.scale)))
        return invalid(formatted("scale {} is not a finite f32", plan.scale));

    plan.size_values.assign(program.sizes.size(), kUnbound);
    plan.size_values[ir::kB] = sizes.batch;
    plan.size_values[ir::kH] = sizes.heads;
    plan.size_values[ir::kHKv] = sizes.kv_heads;
    plan.size_values[ir::kQLen] = q_len;
    plan.size_values[ir::kKvLen] = kv_len;
    plan.size_values[ir::kD] = head_dim;
    plan.size_values[ir::kDv] = head_dim_v;
    const auto heads = bind_heads(program, sizes, options);
    if (!heads) return heads.error();
    auto params = bind_params(program, options.params);
    if (!params) return params.error();
    plan.param_words = std::move(*params);
    set_heads(program, *heads, plan.size_values, plan.param_words);
    if (auto bound = bind_sizes(program, buffers, plan.size_values); !bound) return bound.error();
    if (auto checked = check_extents(program, plan.size_values); !checked) return checked.error();
    if (program.is_dense())
        if (auto checked = check_sums(program, plan.size_values); !checked) return checked.error();
    return plan;
}

namespace {

// Sets the largest numbers of packed rows in the plan. Ragged tensors that are longer than the
// requests allow longer requests later. If no tensors limit the rows, block masks have room for the
// longest requests that the plan allows.
void find_most_rows(const KernelState& kernel, Sequences& sequences, const PlanOptions& options,
                    PlanState& plan) {
    plan.q_rows = sequences.q_rows;
    plan.kv_rows = sequences.kv_rows;
    const auto lengthen = [](Layout layout, const TensorView& tensor, std::int64_t& rows) {
        if (layout == Layout::ragged && tensor.rank == 3) rows = std::max(rows, tensor.shape[0]);
    };
    const auto lengthen_both = [&](const TensorView& q, const TensorView& k) {
        lengthen(kernel.options.query_layout, q, plan.q_rows);
        lengthen(kernel.options.key_layout, k, plan.kv_rows);
    };
    if (options.forward != nullptr) lengthen_both(options.forward->q, options.forward->k);
    if (options.backward != nullptr) lengthen_both(options.backward->q, options.backward->k);
    const auto all_of = [&](Layout layout, std::int64_t length) -> std::int64_t {
        if (layout != Layout::ragged) return 0;
        return std::min<std::int64_t>(plan.sizes.batch * length, INT32_MAX);
    };
    const std::int64_t all_queries = all_of(kernel.options.query_layout, plan.sizes.q_len);
    const std::int64_t all_keys = all_of(kernel.options.key_layout, plan.sizes.kv_len);
    if (sequences.is_on_device) {
        if (plan.q_rows == 0) plan.q_rows = all_queries;
        if (plan.kv_rows == 0) plan.kv_rows = all_keys;
    }
    // A backward has workspace only for the rows that are known now.
    const bool may_grow = options.forward == nullptr && !kernel.options.backward;
    plan.mask_q_rows = may_grow ? std::max(plan.q_rows, all_queries) : plan.q_rows;
    plan.mask_kv_rows = may_grow ? std::max(plan.kv_rows, all_keys) : plan.kv_rows;
    if (!sequences.is_on_device) return;
    sequences.q_rows = plan.q_rows;
    sequences.kv_rows = plan.kv_rows;
}

} // namespace

Result<PlanState> bind_plan(const KernelState& kernel, const Sizes& sizes,
                            std::span<const NamedTensor> buffers, const PlanOptions& options) {
    auto plan = bind_values(kernel.mod.program, kernel.options.head_dim, kernel.options.head_dim_v,
                            sizes, buffers, options);
    if (!plan) return plan;
    for (std::size_t i = 0; i < plan->size_values.size(); ++i)
        if (plan->size_values[i] == kUnbound)
            return invalid(formatted("size '{}' is not known: pass the buffers to plan()",
                                     kernel.mod.program.sizes[i]));
    find_divisors(kernel, *plan);
    if (options.accumulate_gradients)
        for (const ir::Buffer& buffer : kernel.mod.program.buffers)
            if (is_rounded(kernel, buffer))
                return invalid(formatted("gradient of '{}': accumulate_gradients adds to f32, and "
                                         "gradient_type makes it {}",
                                         buffer.name, name(buffer.dtype)));
    if (!kernel.mod.program.is_dense()) {
        auto lengths = bind_lengths(kernel, *plan, options.lengths);
        if (!lengths) return lengths.error();
        plan->sequences = std::make_shared<SequenceState>();
        find_most_rows(kernel, **lengths, options, *plan);
        plan->sequences->set(std::move(*lengths));
    }
    if (auto chosen = choose_variants(kernel, *plan, buffers, options); !chosen)
        return chosen.error();
    find_workspace(kernel, *plan);
    // Offsets in the workspace only grow, so that none of them overflowed if the end did not.
    if (std::max(plan->workspace_bytes, plan->block_mask_bytes) > PTRDIFF_MAX / 2)
        return too_large("the workspace of these sizes is larger than any memory: split the batch");
    return plan;
}

Result<std::shared_ptr<Sequences>> bind_lengths(const KernelState& kernel, const PlanState& plan,
                                                const Lengths& lengths) {
    const Layout queries = kernel.options.query_layout, keys = kernel.options.key_layout;
    if (lengths.on_device) {
        if (auto checked = check_most_terms(kernel.mod.program, plan.size_values, plan.sizes);
            !checked)
            return checked.error();
        return Sequences::later(queries, keys, plan.sizes, lengths);
    }
    auto read = Sequences::read(queries, keys, plan.sizes, lengths);
    if (!read) return read.error();
    Sequences& sequences = **read;
    if (has_sums(kernel.mod.program))
        for (const Sequence& sequence : sequences.sequences)
            if (auto checked = check_sums(kernel.mod.program, plan.size_values, &sequence);
                !checked)
                return checked.error();
    const bool batch_invariant = kernel.options.batch_invariant;
    if (kernel.executable->reads_sequences_of_plan()) {
        sequences.divide_keys(plan.sizes, batch_invariant);
        return read;
    }
    sequences.keep(lengths);
    sequences.work = cpu::list_work(sequences.sequences, static_cast<int>(plan.sizes.heads),
                                    static_cast<int>(plan.sizes.kv_heads), batch_invariant);
    return read;
}

Result<LengthArrays> bind_length_arrays(const KernelState& kernel, const PlanState& plan,
                                        const Lengths& lengths) {
    const Layout queries = kernel.options.query_layout, keys = kernel.options.key_layout;
    auto arrays = Sequences::arrays(queries, keys, plan.sizes, lengths);
    if (!arrays) return arrays;
    arrays->q_rows = plan.q_rows;
    arrays->kv_rows = plan.kv_rows;
    arrays->batch_invariant = kernel.options.batch_invariant;
    plan.sequences->let_device_write();
    const auto known = plan.sequences->get();
    if (known->is_on_device) return arrays;
    if (auto checked = check_most_terms(kernel.mod.program, plan.size_values, plan.sizes); !checked)
        return checked.error();
    auto unknown = Sequences::on_device(queries, keys, plan.sizes, *known);
    unknown->q_rows = plan.q_rows;
    unknown->kv_rows = plan.kv_rows;
    plan.sequences->set(std::move(unknown));
    return arrays;
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
            .variants = variants};
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

Result<void> bind_forward(const KernelState& kernel, const PlanState& plan,
                          const ForwardTensors& tensors, std::span<const NamedTensor> buffers,
                          BoundCall& call) {
    start(plan, call);
    if (auto set = set_tensors(kernel, plan, tensors, call); !set) return set;
    std::array<TensorView, ir::kMaxBuffers> views;
    if (auto found = find_buffers(kernel.mod.program, plan.size_values, buffers, views); !found)
        return found;
    fill_words(kernel, plan, views, call);
    return {};
}

Result<void> bind_backward(const KernelState& kernel, const PlanState& plan,
                           const BackwardTensors& tensors, std::span<const NamedTensor> buffers,
                           std::span<const NamedTensor> gradients, Workspace workspace,
                           BoundCall& call) {
    start(plan, call);
    if (auto set = set_tensors(kernel, plan, tensors, call); !set) return set;
    std::array<TensorView, ir::kMaxBuffers> views;
    if (auto found = find_buffers(kernel.mod.program, plan.size_values, buffers, views); !found)
        return found;
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
