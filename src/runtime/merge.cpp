// Merges partial results, weighted by their lse.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "flexc/kernel.h"
#include "runtime/buffers.h"
#include "support/floats.h"
#include "support/guarded.h"
#include "support/text.h"

namespace flexc {

namespace {

template <typename Format> float load_as(const std::byte* at) {
    typename Format::Bits bits;
    std::memcpy(&bits, at, sizeof bits);
    return Format::widen(bits);
}
template <typename Format> void store_as(std::byte* at, float value) {
    const typename Format::Bits bits = Format::narrow(value);
    std::memcpy(at, &bits, sizeof bits);
}

std::byte* place(const TensorView& tensor, std::int64_t element) {
    return static_cast<std::byte*>(tensor.data) +
           element * static_cast<std::int64_t>(size_of(tensor.dtype));
}
float load(const TensorView& tensor, std::int64_t element) {
    const std::byte* at = place(tensor, element);
    switch (tensor.dtype) {
    case DType::f16: return load_as<support::F16>(at);
    case DType::bf16: return load_as<support::Bf16>(at);
    default: return load_as<support::F32>(at);
    }
}
void store(const TensorView& tensor, std::int64_t element, float value) {
    std::byte* at = place(tensor, element);
    switch (tensor.dtype) {
    case DType::f16: return store_as<support::F16>(at, value);
    case DType::bf16: return store_as<support::Bf16>(at, value);
    default: return store_as<support::F32>(at, value);
    }
}

// Offset of a row. Rows are numbered in row-major order over the first `rank` dims.
std::int64_t offset_of(const TensorView& tensor, int rank, std::int64_t row) {
    std::int64_t offset = 0;
    for (int dim = rank; dim-- > 0;) {
        const auto at = static_cast<std::size_t>(dim);
        offset += row % tensor.shape[at] * tensor.strides[at];
        row /= tensor.shape[at];
    }
    return offset;
}

Result<void> check_state(const TensorView& o, const TensorView& lse, const TensorView& like,
                         std::string_view what) {
    for (const TensorView* tensor : {&o, &lse})
        if (auto checked = runtime::check_view(*tensor, what); !checked) return checked;
    if (o.dtype != DType::f32 && o.dtype != DType::f16 && o.dtype != DType::bf16)
        return runtime::invalid(
            formatted("{}: o of type {} is none of f32, f16 and bf16", what, name(o.dtype)));
    if (lse && lse.dtype != DType::f32)
        return runtime::invalid(formatted("{}: lse has to be f32", what));
    const auto shape = runtime::shape_of(o), expected = runtime::shape_of(like);
    if (!std::equal(shape.begin(), shape.end(), expected.begin(), expected.end()))
        return runtime::invalid(formatted("{}: o is {}; expected {}", what,
                                          runtime::shape_text(shape),
                                          runtime::shape_text(expected)));
    const auto rows = expected.first(expected.size() - 1), got = runtime::shape_of(lse);
    if (lse && !std::equal(got.begin(), got.end(), rows.begin(), rows.end()))
        return runtime::invalid(formatted("{}: lse is {}; expected {}", what,
                                          runtime::shape_text(got), runtime::shape_text(rows)));
    return {};
}

} // namespace

Result<void> merge_states(std::span<const PartialResult> parts, const TensorView& o,
                          const TensorView& lse) {
    return guarded([&]() -> Result<void> {
        if (!o || o.rank < 1) return runtime::invalid("merge_states: o is missing");
        if (auto checked = check_state(o, lse, o, "merge_states"); !checked) return checked;
        for (const TensorView* tensor : {&o, &lse})
            if (auto checked = runtime::check_writable(*tensor, "merge_states"); !checked)
                return checked;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const std::string what = formatted("part {}", i);
            if (!parts[i].o || !parts[i].lse)
                return runtime::invalid(formatted("{}: o or lse is missing", what));
            if (auto checked = check_state(parts[i].o, parts[i].lse, o, what); !checked)
                return checked;
        }
        constexpr float kInfinity = std::numeric_limits<float>::infinity();
        const int rank = o.rank - 1;
        const auto last = static_cast<std::size_t>(rank);
        const std::int64_t columns = o.shape[last];
        const std::int64_t rows = columns == 0 ? 0 : o.elements() / columns;
        std::vector<double> sums(static_cast<std::size_t>(columns));
        for (std::int64_t row = 0; row < rows; ++row) {
            float most = -kInfinity;
            for (const PartialResult& part : parts)
                most = std::max(most, load(part.lse, offset_of(part.lse, rank, row)));
            std::fill(sums.begin(), sums.end(), 0.0);
            double weights = 0;
            for (const PartialResult& part : parts) {
                const float own = load(part.lse, offset_of(part.lse, rank, row));
                if (own == -kInfinity) continue;
                const double weight = std::exp(double{own} - double{most});
                weights += weight;
                const std::int64_t from = offset_of(part.o, rank, row);
                for (std::int64_t d = 0; d < columns; ++d)
                    sums[static_cast<std::size_t>(d)] +=
                        weight * double{load(part.o, from + d * part.o.strides[last])};
            }
            const std::int64_t to = offset_of(o, rank, row);
            for (std::int64_t d = 0; d < columns; ++d)
                store(o, to + d * o.strides[last],
                      weights == 0
                          ? 0.0f
                          : static_cast<float>(sums[static_cast<std::size_t>(d)] / weights));
            if (lse)
                store(lse, offset_of(lse, rank, row),
                      weights == 0 ? -kInfinity
                                   : static_cast<float>(double{most} + std::log(weights)));
        }
        return {};
    });
}

} // namespace flexc
