#include "runtime/loaded_pass.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "plan/few_work.h"
#include "runtime/cuda_workspace.h"
#include "runtime/dense_bias_rows.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

bool has_narrow_offsets(const plan::BufferWords& buffer, const Call& call) {
    std::uint64_t last = 0; // offset of the last element, so far
    for (std::size_t dim = 0; dim < buffer.strides.size(); ++dim) {
        const auto extent = static_cast<std::int64_t>(call.words[buffer.extents[dim]]);
        const auto stride = static_cast<std::int64_t>(call.words[buffer.strides[dim]]);
        const std::uint64_t size = stride < 0 ? 0 - static_cast<std::uint64_t>(stride)
                                              : static_cast<std::uint64_t>(stride);
        if (extent <= 1) continue;
        if (size > INT32_MAX || extent > INT32_MAX) return false;
        last += size * static_cast<std::uint64_t>(extent - 1);
        if (last > INT32_MAX) return false;
    }
    return true;
}

bool has_few_entries(const plan::BoundTables& all, const Call& call) {
    std::int64_t entries = 0;
    for (const plan::BoundTables::Table& table : all.tables) {
        std::int64_t of_table = table.known;
        for (const std::size_t word : table.bound) {
            // A dim without entries leaves the others' extents as they are.
            const auto extent =
                std::max<std::int64_t>(1, static_cast<std::int64_t>(call.words[word]));
            if (extent > all.most_entries) return false;
            of_table = std::min(of_table * extent, all.most_entries + 1);
        }
        entries += of_table;
    }
    return entries <= all.most_entries;
}

plan::Launch::Maps maps_of(const plan::PassPlan& pass) {
    for (const plan::Step& step : pass.steps)
        if (const auto* launch = std::get_if<plan::Launch>(&step);
            launch != nullptr && launch->tensor_maps != plan::Launch::Maps::none)
            return launch->tensor_maps;
    return plan::Launch::Maps::none;
}

} // namespace

Result<LoadedPass> load_pass(CudaPass& pass, int device) {
    LoadedPass loaded{std::move(pass.plan), {}, {}};
    for (const CudaKernel& kernel : pass.kernels) {
        auto module = cuda::Module::load(device, kernel.cubin);
        if (!module) return module.error();
        loaded.modules.push_back(std::move(*module));
    }
    for (const plan::Step& step : loaded.plan.steps) {
        std::optional<cuda::Function>& to = loaded.functions.emplace_back();
        const auto load = [&](std::size_t kernel, std::string_view entry,
                              int shared_bytes) -> Result<void> {
            auto function = loaded.modules[kernel].function(std::string(entry), shared_bytes);
            if (!function) return function.error();
            to = *function;
            return {};
        };
        const auto load_kernel = [&](std::size_t kernel) {
            return load(kernel, loaded.plan.kernels[kernel].entry, 0);
        };
        Result<void> done;
        if (const auto* launch = std::get_if<plan::Launch>(&step))
            done = load(launch->kernel, launch->entry, launch->shared_bytes);
        else if (const auto* sums = std::get_if<plan::RoundSums>(&step))
            done = load_kernel(sums->kernel);
        else if (const auto* gradients = std::get_if<plan::RoundGradients>(&step))
            done = load_kernel(gradients->kernel);
        if (!done) return done.error();
    }
    return loaded;
}

std::string why_not(const plan::PassPlan& pass, const Call& call, const cuda::TensorForm& form) {
    const AttentionArguments& attention = call.attention;
    if (pass.is_of_inside_calls && !call.is_inside)
        return "sizes and params of the call may have indices outside of a buffer, or many kinds";
    if (pass.most_rows != 0 && std::max(attention.q_len, attention.kv_len) > pass.most_rows)
        return formatted("it has sequences of more than {} rows", pass.most_rows);
    if (pass.has_few_queries && !plan::has_few_rows(dense_sizes_of(attention)))
        return formatted("more than {} queries share keys", kMostFewRows);
    if (pass.heads_have_own_keys && attention.heads != attention.kv_heads)
        return "heads of queries share keys";
    if (!(attention.scale >= pass.least_scale))
        return formatted("a scale of {} is too small", attention.scale);
    if (attention.q_offset % pass.query_offset_step != 0)
        return formatted("q_offset {} is no multiple of {}", attention.q_offset,
                         pass.query_offset_step);
    if (attention.kv_offset % pass.key_offset_step != 0)
        return formatted("kv_offset {} is no multiple of {}", attention.kv_offset,
                         pass.key_offset_step);
    if (!std::ranges::all_of(pass.small_buffers, [&](const plan::BufferWords& buffer) {
            return has_narrow_offsets(buffer, call);
        }))
        return "a buffer, or a gradient, has elements 2^31 or more elements apart";
    if (!have_aligned_rows(pass.tiled_biases, call))
        return "rows of a dense bias, or of its gradient, do not start at 16 aligned bytes";
    if (!std::ranges::all_of(pass.bound_tables, [&](const plan::BoundTables& tables) {
            return has_few_entries(tables, call);
        }))
        return "a block has no room for all entries of its tables";
    std::string_view tensor;
    switch (maps_of(pass)) {
    case plan::Launch::Maps::none: break;
    case plan::Launch::Maps::forward:
    case plan::Launch::Maps::forward_queries:
        tensor = cuda::forward_tensor_without_tma(attention, form);
        break;
    case plan::Launch::Maps::backward:
        tensor = cuda::backward_tensor_without_tma(attention, form);
        break;
    }
    if (tensor.empty()) return "";
    return formatted("TMA cannot walk {}, whose base and strides have to be of 16 aligned bytes",
                     tensor);
}

} // namespace flexc::runtime
