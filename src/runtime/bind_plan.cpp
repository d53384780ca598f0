#include "runtime/bind_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "analysis/call_range.h"
#include "common/reciprocal.h"
#include "cpu/work.h"
#include "ir/interp.h"
#include "passes/inside_calls.h"
#include "passes/table_gradient.h"
#include "runtime/alignment.h"
#include "runtime/bind_call.h"
#include "runtime/buffers.h"
#include "runtime/expected_calls.h"
#include "runtime/heads.h"
#include "runtime/mask_values.h"
#include "runtime/size_checks.h"
#include "support/text.h"

namespace flexc::runtime {

using detail::KernelState;
using detail::PlanState;
using Kind = passes::ArgumentSlot::Kind;

namespace {

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

// Finds whether sizes and params keep indices inside, and kinds few, where such calls have kernels
// of their own.
void find_inside(const KernelState& kernel, PlanState& plan) {
    for (const passes::Mod& mod : kernel.mod.inside_calls) {
        const ir::Program& program = mod.program;
        using analysis::positions;
        analysis::CallValues values{.b = positions(0, plan.sizes.batch),
                                    .h = positions(0, plan.sizes.heads),
                                    .h_kv = positions(0, plan.sizes.kv_heads),
                                    .q = positions(plan.q_offset, plan.sizes.q_len),
                                    .kv = positions(plan.kv_offset, plan.sizes.kv_len),
                                    .sizes = plan.size_values,
                                    .params = {}};
        for (std::size_t i = 0; i < program.params.size(); ++i) {
            const auto value = static_cast<std::int64_t>(plan.param_words[i]);
            values.params.push_back(program.params[i].type == ir::Type::integer
                                        ? analysis::Interval{value, value}
                                        : analysis::Interval{});
        }
        const auto has_few_kinds = [&](ir::NodeId read) {
            const std::vector<ir::Dim>& dims = program.buffer_of(read).dims;
            return std::ranges::all_of(passes::varying_dims(mod, read), [&](std::uint32_t dim) {
                return dims[dim].is_constant() || plan.extent(dims[dim]) <= passes::kMostBoundKinds;
            });
        };
        plan.is_inside = analysis::are_inside(program, mod.inside_reads, values) &&
                         std::ranges::all_of(mod.few_kinds, has_few_kinds);
    }
}

void find_workspace(const KernelState& kernel, PlanState& plan) {
    BoundCall shapes;
    start_call(plan, shapes);
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
    find_inside(kernel, *plan);
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

} // namespace flexc::runtime
