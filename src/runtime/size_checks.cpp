#include "runtime/size_checks.h"

#include <algorithm>

#include "analysis/range.h"
#include "ir/interp.h"
#include "passes/describe.h"
#include "runtime/buffers.h"
#include "support/amounts.h"
#include "support/text.h"

namespace flexc::runtime {

Result<void> check_lengths(const Sizes& sizes, bool is_dense, int head_dim, int head_dim_v) {
    struct Row {
        const char* name;
        std::int64_t value;
        bool may_be_zero = false;
    };
    for (const Row& row : {Row{"batch", sizes.batch, !is_dense}, Row{"heads", sizes.heads},
                           Row{"kv_heads", sizes.kv_heads}, Row{"q_len", sizes.q_len, !is_dense},
                           Row{"kv_len", sizes.kv_len, !is_dense}})
        if (row.value < (row.may_be_zero ? 0 : 1) || row.value >= analysis::kMaxLength)
            return invalid(formatted("{} is {}; it must be between {} and {}", row.name, row.value,
                                     row.may_be_zero ? 0 : 1, analysis::kMaxLength - 1));
    if (sizes.heads % sizes.kv_heads != 0)
        return invalid(formatted("{} query heads cannot share {} key/value heads evenly",
                                 sizes.heads, sizes.kv_heads));
    constexpr std::int64_t kMaxHeads = INT32_MAX;
    if (sizes.batch * sizes.heads > kMaxHeads)
        return too_large(formatted("batch {} of {} heads: they must be at most {} in all",
                                   sizes.batch, sizes.heads, kMaxHeads));
    const std::int64_t heads = sizes.batch * sizes.heads;
    const std::int64_t length = std::max(sizes.q_len, sizes.kv_len);
    const int dim = std::max(head_dim, head_dim_v);
    if (support::product(heads, length, dim) > kMaxTensorElements)
        return too_large(formatted("{} heads of {} rows of {} elements: a tensor has at most 2^48",
                                   heads, length, dim));
    return {};
}

Result<void> check_extents(const ir::Program& program, std::span<const std::int64_t> sizes) {
    for (const ir::Buffer& buffer : program.buffers) {
        std::int64_t elements = 1;
        for (const ir::Dim& dim : buffer.dims) {
            const std::int64_t extent = dim.is_constant() ? dim.constant : sizes[dim.size];
            if (extent != kUnbound) elements = support::times(elements, extent);
        }
        if (elements > kMaxTensorElements)
            return too_large(formatted("'{}': a buffer of {} has more than 2^48 elements",
                                       buffer.name, dims_text(program, buffer, sizes)));
    }
    return {};
}

bool has_sums(const ir::Program& program) {
    for (ir::NodeId id = 0; id < program.graph.size(); ++id)
        if (program.graph[id].op == ir::Op::counter) return true;
    return false;
}

Result<void> check_sums(const ir::Program& program, const std::vector<std::int64_t>& sizes,
                        const Sequence* sequence) {
    ir::Environment environment;
    environment.sizes = sizes;
    if (sequence != nullptr) {
        environment.q_len = sequence->q_len;
        environment.kv_len = sequence->kv_len;
    }
    for (ir::NodeId id = 0; id < program.graph.size(); ++id) {
        const ir::Node& counter = program.graph[id];
        if (counter.op != ir::Op::counter) continue;
        const std::vector<ir::NodeId> needs = ir::reachable(program.graph, counter.operands);
        const bool is_known = std::ranges::all_of(needs, [&](ir::NodeId need) {
            const ir::Node& node = program.graph[need];
            // For parts of a call, heads are params, and lengths of requests in one sequence are
            // read: their values are not known here.
            return node.op != ir::Op::read && node.op != ir::Op::param &&
                   (node.op != ir::Op::size || sizes[node.symbol] != kUnbound);
        });
        if (!is_known) continue;
        const std::int64_t first = ir::evaluate_integer(program, counter.operands[0], environment);
        const std::int64_t end = ir::evaluate_integer(program, counter.operands[1], environment);
        std::int64_t terms = 0;
        if (__builtin_sub_overflow(end, first, &terms) ? end > first : terms > ir::kMaxTerms)
            return Error{ErrorCode::limit,
                         formatted("the sum over {}..{} goes from {} to {} here; a sum has at most "
                                   "{} terms: use a shorter range",
                                   passes::formula(program, counter.operands[0]),
                                   passes::formula(program, counter.operands[1]), first, end,
                                   ir::kMaxTerms)};
    }
    return {};
}

Result<void> check_most_terms(const ir::Program& program,
                              const std::vector<std::int64_t>& size_values, const Sizes& sizes) {
    for (const std::int64_t q_len : {std::int64_t{0}, sizes.q_len})
        for (const std::int64_t kv_len : {std::int64_t{0}, sizes.kv_len}) {
            Sequence sequence{};
            sequence.q_len = static_cast<int>(q_len);
            sequence.kv_len = static_cast<int>(kv_len);
            if (auto checked = check_sums(program, size_values, &sequence); !checked)
                return checked;
        }
    return {};
}

} // namespace flexc::runtime
