#include "keys/in_order.h"

#include "runtime/keys/reader.h"
#include "runtime/request_rows.h"

namespace flexc::runtime {

namespace {

Result<void> read_keys_in_order(Layout layout, const Lengths& lengths, const Sizes& sizes,
                                std::span<Sequence> sequences, std::vector<int>& /*numbers*/) {
    const RequestAxis axis = key_axis(layout, sizes, lengths);
    for (std::size_t request = 0; request < sequences.size(); ++request) {
        auto rows = rows_of(axis, request);
        if (!rows) return rows.error();
        sequences[request].kv_row = rows->row;
        sequences[request].kv_len = static_cast<int>(rows->used);
        sequences[request].kv_rows = static_cast<int>(rows->rows);
    }
    return {};
}

} // namespace

const KeyReader kKeysInOrder = {
    .table_layout = ::KeysInOrder::kLayout,
    .arrays = {},
    .extents = [](const Lengths&, const Sizes&) -> Result<KeyExtents> { return KeyExtents(); },
    .check_arrays = [](const Lengths&, std::int64_t) -> Result<void> { return {}; },
    .check_order = [](const Lengths&) -> Result<void> { return {}; },
    .read = read_keys_in_order,
    .most_numbers = [](const Sizes&, const KeyExtents&) -> std::int64_t { return 0; }};

} // namespace flexc::runtime
