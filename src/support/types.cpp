#include "flexc/types.h"

#include <algorithm>
#include <array>

#include "flexc/options.h"
#include "flexc/result.h"
#include "support/amounts.h"

namespace flexc {

namespace {

struct DTypeRow {
    std::string_view name;
    std::size_t bytes;
    bool is_float;
};

// In the order of DType.
constexpr std::array<DTypeRow, 12> kDTypes = {{{"f64", 8, true},
                                               {"f32", 4, true},
                                               {"f16", 2, true},
                                               {"bf16", 2, true},
                                               {"i64", 8, false},
                                               {"i32", 4, false},
                                               {"i16", 2, false},
                                               {"i8", 1, false},
                                               {"u8", 1, false},
                                               {"bool", 1, false},
                                               {"e4m3", 1, true},
                                               {"e5m2", 1, true}}};

const DTypeRow& row(DType dtype) { return kDTypes[static_cast<std::size_t>(dtype)]; }

} // namespace

std::string_view name(DType dtype) { return row(dtype).name; }
std::size_t size_of(DType dtype) { return row(dtype).bytes; }
bool is_float(DType dtype) { return row(dtype).is_float; }

bool parse_dtype(std::string_view text, DType& dtype) {
    for (std::size_t i = 0; i < kDTypes.size(); ++i)
        if (kDTypes[i].name == text) {
            dtype = static_cast<DType>(i);
            return true;
        }
    return false;
}

TensorView TensorView::contiguous(void* data, DType dtype, std::span<const std::int64_t> shape) {
    // A rank that calls refuse keeps what there is room for.
    const std::size_t rank = std::min(shape.size(), std::size_t{kMaxDims});
    TensorView view{
        .data = data, .dtype = dtype, .rank = rank < shape.size() ? kMaxDims + 1 : int(rank)};
    std::int64_t stride = 1;
    for (std::size_t i = rank; i-- > 0;) {
        view.shape[i] = shape[i];
        view.strides[i] = stride;
        stride = support::times(stride, shape[i]);
    }
    return view;
}

TensorView TensorView::read_only(const void* data, DType dtype,
                                 std::span<const std::int64_t> shape) {
    TensorView view = contiguous(const_cast<void*>(data), dtype, shape);
    view.is_read_only = true;
    return view;
}

std::int64_t TensorView::elements() const {
    if (rank < 0 || rank > kMaxDims) return 0;
    std::int64_t count = 1;
    for (int i = 0; i < rank; ++i)
        count = support::times(count, shape[static_cast<std::size_t>(i)]);
    return count;
}

std::string_view name(ErrorCode code) {
    constexpr std::array<std::string_view, 10> kNames = {
        "syntax",         "invalid option", "limit", "unsupported", "library missing",
        "compile failed", "device",         "io",    "internal",    "cancelled"};
    return kNames[static_cast<std::size_t>(code)];
}

} // namespace flexc
