#include "distributed/rows.h"

#include <array>
#include <cstring>
#include <vector>

#include "support/floats.h"

namespace flexc::distributed {

namespace {

std::byte* at(const TensorView& tensor, std::int64_t offset) {
    return static_cast<std::byte*>(tensor.data) +
           offset * static_cast<std::int64_t>(size_of(tensor.dtype));
}

// Calls visit(offset of a run of the last dim, number of that run) for all of them, in order.
template <typename Visit> void each_run(const TensorView& tensor, Visit visit) {
    const auto last = static_cast<std::size_t>(tensor.rank - 1);
    std::int64_t runs = 1;
    for (std::size_t dim = 0; dim < last; ++dim)
        runs *= tensor.shape[dim];
    if (tensor.shape[last] == 0) return;
    std::array<std::int64_t, kMaxDims> index{};
    for (std::int64_t run = 0; run < runs; ++run) {
        std::int64_t offset = 0;
        for (std::size_t dim = 0; dim < last; ++dim)
            offset += index[dim] * tensor.strides[dim];
        visit(offset, run);
        for (std::size_t dim = last; dim-- > 0;) {
            if (++index[dim] < tensor.shape[dim]) break;
            index[dim] = 0;
        }
    }
}

// Calls visit(element of the tensor, number of the element).
template <typename Visit> void each_element(const TensorView& tensor, Visit visit) {
    const auto last = static_cast<std::size_t>(tensor.rank - 1);
    const std::int64_t columns = tensor.shape[last], stride = tensor.strides[last];
    each_run(tensor, [&](std::int64_t offset, std::int64_t run) {
        for (std::int64_t i = 0; i < columns; ++i)
            visit(at(tensor, offset + i * stride), run * columns + i);
    });
}

// One memcpy for each run of the last dim where that has no gaps.
template <bool kIsPacking> void move_runs(const TensorView& tensor, std::byte* packed) {
    const auto last = static_cast<std::size_t>(tensor.rank - 1);
    const std::size_t element = size_of(tensor.dtype);
    const auto move = [](std::byte* inside, std::byte* outside, std::size_t bytes) {
        if (kIsPacking)
            std::memcpy(outside, inside, bytes);
        else
            std::memcpy(inside, outside, bytes);
    };
    if (tensor.strides[last] == 1 || tensor.shape[last] == 1) {
        const std::size_t bytes = static_cast<std::size_t>(tensor.shape[last]) * element;
        each_run(tensor, [&](std::int64_t offset, std::int64_t run) {
            move(at(tensor, offset), packed + static_cast<std::size_t>(run) * bytes, bytes);
        });
        return;
    }
    each_element(tensor, [&](std::byte* inside, std::int64_t number) {
        move(inside, packed + static_cast<std::size_t>(number) * element, element);
    });
}

template <typename Format> void round_as(const float* from, const TensorView& to) {
    each_element(to, [&](std::byte* element, std::int64_t number) {
        const typename Format::Bits bits = Format::narrow(from[number]);
        std::memcpy(element, &bits, sizeof bits);
    });
}

template <typename Format> void widen_as(const TensorView& from, float* to) {
    each_element(from, [&](const std::byte* element, std::int64_t number) {
        typename Format::Bits bits;
        std::memcpy(&bits, element, sizeof bits);
        to[number] = Format::widen(bits);
    });
}

} // namespace

TensorView rows_of(const TensorView& tensor, std::int64_t begin, std::int64_t count,
                   std::size_t dim) {
    TensorView rows = tensor;
    if (tensor) rows.data = at(tensor, begin * tensor.strides[dim]);
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

void pack(const TensorView& from, std::byte* to) { move_runs<true>(from, to); }
void unpack(const std::byte* from, const TensorView& to) {
    move_runs<false>(to, const_cast<std::byte*>(from));
}

void copy(const TensorView& from, const TensorView& to) {
    std::vector<std::byte> packed(bytes_of(from));
    pack(from, packed.data());
    unpack(packed.data(), to);
}

void add(const float* from, const TensorView& to) {
    each_element(to, [&](std::byte* element, std::int64_t number) {
        auto* sum = reinterpret_cast<float*>(element);
        *sum += from[number];
    });
}

void widen(const TensorView& from, float* to) {
    switch (from.dtype) {
    case DType::f16: return widen_as<support::F16>(from, to);
    case DType::bf16: return widen_as<support::Bf16>(from, to);
    default: return widen_as<support::F32>(from, to);
    }
}

void round_to(const float* from, const TensorView& to) {
    switch (to.dtype) {
    case DType::f16: return round_as<support::F16>(from, to);
    case DType::bf16: return round_as<support::Bf16>(from, to);
    case DType::f64: return round_as<support::F64>(from, to);
    default: return round_as<support::F32>(from, to);
    }
}

} // namespace flexc::distributed
