#include "cpu/backend/request_keys.h"

namespace flexc::cpu::requests {

RowList Keys::list_rows(Range keys, int kv_head, const TensorArgument& tensor,
                        std::int64_t* offsets) const {
    constexpr std::int64_t kBytes = 2;
    RowList list{static_cast<const char*>(tensor.data), tensor.stride_s * kBytes, nullptr,
                 keys.end - keys.begin};
    std::int64_t offset = 0, *next = offsets;
    const auto add = [&](std::int64_t count) {
        for (std::int64_t i = 0; i < count; ++i, offset += list.stride)
            *next++ = offset;
    };
    visit_runs(keys, kv_head, [&](const Rows& rows, std::int64_t) {
        offset = rows.b * tensor.stride_b + rows.h * tensor.stride_h;
        offset = offset * kBytes + rows.first * list.stride;
        if (rows.count == list.count)
            list.data += offset;
        else
            add(rows.count);
    });
    if (next == offsets) return list;
    add(RowList::kNext);
    list.offsets = offsets;
    return list;
}

Magnitude Keys::widen_keys(Range keys, int kv_head, float* keys_out) const {
    return load_runs(keys, kv_head,
                     [&](const Rows& rows, std::int64_t column, std::int64_t padded) {
                         return load_transposed(in_.k, shape_.kv_dtype, rows, shape_.head_dim,
                                                keys_out + column, kKeyTile, padded,
                                                in_.k_scale.of(rows.b, static_cast<int>(rows.h)));
                     });
}

Magnitude Keys::widen_values(Range keys, int kv_head, float* values_out) const {
    const int dim = shape_.head_dim_v;
    return load_runs(
        keys, kv_head, [&](const Rows& rows, std::int64_t column, std::int64_t padded) {
            return load_rows(in_.v, shape_.kv_dtype, rows, dim, values_out + column * dim, padded,
                             in_.v_scale.of(rows.b, static_cast<int>(rows.h)));
        });
}

void Keys::find_rows(Range keys, std::int64_t* rows) const {
    with_layout([&](const auto& of_request) {
        if (of_request.kAreInOrder) return; // emitted functions compute these rows
        for (std::int64_t key = keys.begin; key < keys.end; ++key)
            rows[key % kKeyTile] = of_request.row(static_cast<int>(key));
    });
}

} // namespace flexc::cpu::requests
