#include "runtime/heads.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "analysis/range.h"
#include "passes/part.h"
#include "runtime/buffers.h"
#include "support/amounts.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

using passes::kHeadNames;
using passes::kKvHeadNames;

struct Value {
    std::string_view name;
    std::int64_t value;
};
std::array<Value, 4> params_of(const HeadPart& part) {
    return {{{kHeadNames.first, part.first},
             {kHeadNames.whole, part.heads},
             {kKvHeadNames.first, part.first_kv},
             {kKvHeadNames.whole, part.kv_heads}}};
}

// Whether the query heads here share KV heads in the same way as in the whole.
bool shares_keys_alike(const Sizes& sizes, const HeadPart& part) {
    const std::int64_t group = part.heads / part.kv_heads;
    const std::int64_t last = part.first + sizes.heads - 1;
    if (sizes.kv_heads == 1) return part.first / group == last / group;
    return sizes.heads / sizes.kv_heads == group && part.first % group == 0;
}

} // namespace

bool is_of_heads(const ir::Param& param) {
    return std::ranges::any_of(params_of({}),
                               [&](const Value& value) { return value.name == param.name; });
}

bool is_part_of_heads(const ir::Program& program) {
    return std::ranges::any_of(program.params, is_of_heads);
}

Result<HeadPart> bind_heads(const ir::Program& program, const Sizes& sizes,
                            const PlanOptions& options) {
    if (!is_part_of_heads(program)) {
        if (options.head_offset != 0 || options.global_heads || options.global_kv_heads)
            return invalid("head_offset, global_heads and global_kv_heads are of kernels that were "
                           "compiled for some of the heads: set part_of_heads");
        return HeadPart{0, 0, sizes.heads, sizes.kv_heads};
    }
    HeadPart part;
    part.first = options.head_offset;
    const std::int64_t end = support::plus(part.first, sizes.heads);
    part.heads = options.global_heads.value_or(end);
    if (part.first < 0 || end > part.heads || part.heads >= analysis::kMaxLength)
        return invalid(formatted("heads {} to {} of {}: head_offset and heads must lie inside "
                                 "global_heads, which must be below {}",
                                 part.first, end, part.heads, analysis::kMaxLength));
    const std::int64_t group = sizes.heads / sizes.kv_heads;
    if (!options.global_kv_heads && part.heads % group != 0)
        return invalid(formatted("{} heads in all do not share keys as the {} here do, {} each: "
                                 "give global_kv_heads",
                                 part.heads, sizes.heads, group));
    part.kv_heads = options.global_kv_heads.value_or(part.heads / group);
    if (part.kv_heads < 1 || part.heads % part.kv_heads != 0)
        return invalid(formatted("global_heads: {} query heads cannot share {} key/value heads, "
                                 "which is global_kv_heads, evenly",
                                 part.heads, part.kv_heads));
    part.first_kv = part.first / (part.heads / part.kv_heads);
    if (!shares_keys_alike(sizes, part))
        return invalid(formatted(
            "heads {} to {} of {} with {} key/value heads do not share the {} that are here as "
            "they share those: a part has whole groups of {} heads, or heads of one group",
            part.first, end, part.heads, part.kv_heads, sizes.kv_heads,
            part.heads / part.kv_heads));
    return part;
}

void set_heads(const ir::Program& program, const HeadPart& part, std::span<std::int64_t> sizes,
               std::span<std::uint64_t> params) {
    for (std::size_t i = 0; i < program.params.size(); ++i)
        for (const Value& value : params_of(part))
            if (program.params[i].name == value.name)
                params[i] = static_cast<std::uint64_t>(value.value);
    for (std::size_t i = 0; i < program.sizes.size(); ++i) {
        if (program.sizes[i] == kHeadNames.extent) sizes[i] = part.heads;
        if (program.sizes[i] == kKvHeadNames.extent) sizes[i] = part.kv_heads;
    }
}

} // namespace flexc::runtime
