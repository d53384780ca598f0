#include "distributed/rows.h"

namespace flexc::distributed {

TensorView rows_of(const TensorView& tensor, std::int64_t begin, std::int64_t count,
                   std::size_t dim) {
    TensorView rows = tensor;
    if (tensor)
        rows.data = static_cast<std::byte*>(tensor.data) +
                    begin * tensor.strides[dim] * static_cast<std::int64_t>(size_of(tensor.dtype));
    rows.shape[dim] = count;
    return rows;
}

std::int64_t row_of(std::span<const RowRange> ranges, std::int64_t position) {
    std::int64_t row = 0;
    for (const RowRange& range : ranges) {
        if (position >= range.begin && position < range.end) return row + position - range.begin;
        row += range.count();
    }
    return -1;
}

std::size_t bytes_of(const TensorView& tensor) {
    return static_cast<std::size_t>(tensor.elements()) * size_of(tensor.dtype);
}

} // namespace flexc::distributed
