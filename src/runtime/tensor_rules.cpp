#include "runtime/tensor_rules.h"

#include "runtime/buffers.h"
#include "runtime/sequences.h"
#include "support/key_layout.h"
#include "support/text.h"

namespace flexc::runtime {

using support::KeyAxis;

namespace {

Result<void> check_tensor(const TensorRule& rule, DType kernel_dtype) {
    const TensorView& tensor = *rule.tensor;
    if (!tensor) {
        if (!rule.required) return {};
        return invalid(formatted("{}: missing", rule.name));
    }
    const DType expected = rule.requires_f32 ? DType::f32 : rule.dtype.value_or(kernel_dtype);
    if (tensor.dtype != expected && (!rule.allows_f32 || tensor.dtype != DType::f32))
        return invalid(formatted("{}: expected type {}{}, got {}", rule.name, name(expected),
                                 rule.allows_f32 && expected != DType::f32 ? " or f32" : "",
                                 name(tensor.dtype)));
    const std::span<const std::int64_t> shape(rule.shape.data(),
                                              static_cast<std::size_t>(rule.rank));
    if (rule.is_written)
        if (auto checked = check_writable(tensor, rule.name); !checked) return checked;
    if (auto checked = check_view(tensor, rule.name); !checked) return checked;
    const auto got = shape_of(tensor);
    bool matches = shape.size() == got.size();
    for (std::size_t i = 0; matches && i < shape.size(); ++i)
        matches = got[i] == shape[i] || (i == 0 && rule.may_be_longer && got[i] > shape[i]);
    if (!matches)
        return invalid(formatted("{}: expected shape {}{}, got {}", rule.name, shape_text(shape),
                                 rule.may_be_longer ? " or more rows" : "", shape_text(got)));
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % size_of(tensor.dtype) != 0)
        return invalid(formatted("{}: the pointer is not aligned to its {} elements", rule.name,
                                 name(tensor.dtype)));
    return {};
}

} // namespace

TensorRule optional(TensorRule rule) {
    rule.required = false;
    return rule;
}
TensorRule or_f32(TensorRule rule) {
    rule.allows_f32 = true;
    return rule;
}
TensorRule written(TensorRule rule, bool requires_f32) {
    rule.is_written = true;
    rule.requires_f32 = rule.requires_f32 || requires_f32;
    return rule;
}

Result<void> check_all(std::span<const TensorRule> rules, DType kernel_dtype) {
    for (const TensorRule& rule : rules)
        if (auto checked = check_tensor(rule, kernel_dtype); !checked) return checked;
    return {};
}

TensorRules::TensorRules(const detail::KernelState& kernel, const Sizes& sizes,
                         const Sequences* sequences)
    : sizes_(sizes), queries_(kernel.options.query_layout), keys_(kernel.options.key_layout),
      sequences_(sequences), kv_dtype_(kernel.options.kv_dtype) {}

TensorRule TensorRules::of_queries(const char* name, const TensorView& tensor,
                                   std::int64_t columns) const {
    if (queries_ == Layout::ragged)
        return {.name = name,
                .tensor = &tensor,
                .shape = {sequences_->q_rows, sizes_.heads, columns},
                .rank = 3,
                .required = true,
                .may_be_longer = true};
    return {.name = name,
            .tensor = &tensor,
            .shape = {sizes_.batch, sizes_.heads, sizes_.q_len, columns},
            .rank = 4,
            .required = true};
}

TensorRule TensorRules::of_rows(const char* name, const TensorView& tensor) const {
    TensorRule rule = of_queries(name, tensor, 0);
    --rule.rank;
    rule.allows_f32 = rule.requires_f32 = true;
    return rule;
}

TensorRule TensorRules::of_keys(const char* name, const TensorView& tensor,
                                std::int64_t columns) const {
    TensorRule rule{.name = name, .tensor = &tensor, .required = true, .dtype = kv_dtype_};
    const KeyExtents extents = extents_of_keys();
    const std::span<const KeyAxis> axes = support::key_layout(keys_).axes;
    for (std::size_t i = 0; i < axes.size(); ++i)
        switch (axes[i]) {
        case KeyAxis::entry: rule.shape[i] = extents.entries; break;
        case KeyAxis::head: rule.shape[i] = sizes_.kv_heads; break;
        case KeyAxis::row: rule.shape[i] = extents.rows; break;
        case KeyAxis::column: rule.shape[i] = columns; break;
        }
    rule.rank = static_cast<int>(axes.size());
    rule.may_be_longer = keys_ == Layout::ragged;
    return rule;
}

KeyExtents TensorRules::extents_of_keys() const {
    if (!support::key_layout(keys_).is_in_order) return sequences_->key_extents;
    return {sizes_.batch, keys_ == Layout::ragged ? sequences_->kv_rows : sizes_.kv_len};
}

Result<void> TensorRules::check_scale(const char* name, const TensorView& scale) const {
    if (!scale) return {};
    if (!kv_dtype_)
        return invalid(formatted("{}: the kernel was compiled for k and v of the type of q, which "
                                 "have no scale: set kv_dtype",
                                 name));
    if (scale.dtype != DType::f32)
        return invalid(formatted("{}: expected type f32, got {}", name, flexc::name(scale.dtype)));
    if (auto checked = check_view(scale, name); !checked) return checked;
    const std::int64_t first = extents_of_keys().entries;
    const auto got = shape_of(scale);
    const auto fits = [](std::int64_t extent, std::int64_t whole) {
        return extent == 1 || extent == whole;
    };
    const bool matches = got.size() == 2   ? fits(got[0], first) && fits(got[1], sizes_.kv_heads)
                         : got.size() == 1 ? fits(got[0], sizes_.kv_heads)
                                           : got.empty();
    if (!matches)
        return invalid(formatted("{}: expected shape [], [{}] or [{}, {}], each of them or 1, "
                                 "got {}",
                                 name, sizes_.kv_heads, first, sizes_.kv_heads, shape_text(got)));
    if (reinterpret_cast<std::uintptr_t>(scale.data) % size_of(DType::f32) != 0)
        return invalid(formatted("{}: the pointer is not aligned to its f32 elements", name));
    return {};
}

} // namespace flexc::runtime
