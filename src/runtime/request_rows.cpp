#include "runtime/request_rows.h"

#include "runtime/buffers.h"
#include "support/text.h"

namespace flexc::runtime {

RequestAxis query_axis(Layout layout, const Sizes& sizes, const Lengths& lengths) {
    return {"cu_seqlens_q", "seqused_q",          "queries",         "q_len",
            layout,         lengths.cu_seqlens_q, lengths.seqused_q, sizes.q_len};
}
RequestAxis key_axis(Layout layout, const Sizes& sizes, const Lengths& lengths) {
    return {"cu_seqlens_k",       "seqused_k",       "keys",      "kv_len", layout,
            lengths.cu_seqlens_k, lengths.seqused_k, sizes.kv_len};
}

Result<void> check_axis(const RequestAxis& axis, std::int64_t batch) {
    if (axis.layout == Layout::ragged) {
        if (auto checked = check_count(axis.cu_name, axis.cu_seqlens, batch + 1); !checked)
            return checked;
    } else if (auto checked = check_absent(
                   axis.cu_name, axis.cu_seqlens,
                   formatted("the kernel was compiled for {} that are not ragged", axis.what));
               !checked) {
        return checked;
    }
    if (!axis.used.empty()) return check_count(axis.used_name, axis.used, batch);
    return {};
}

Result<RequestRows> rows_of(const RequestAxis& axis, std::size_t request) {
    RequestRows rows{.rows = axis.most};
    if (axis.layout == Layout::ragged) {
        rows.row = axis.cu_seqlens[request];
        rows.rows = axis.cu_seqlens[request + 1] - rows.row;
    }
    rows.used = axis.used.empty() ? rows.rows : axis.used[request];
    if (rows.used < 0 || rows.used > rows.rows)
        return invalid(formatted("{}[{}] is {}; the request has {} rows of {}", axis.used_name,
                                 request, rows.used, rows.rows, axis.what));
    if (rows.used > axis.most)
        return invalid(formatted("request {} has {} {}; the plan's {} allows {}", request,
                                 rows.used, axis.what, axis.size_name, axis.most));
    return rows;
}

} // namespace flexc::runtime
