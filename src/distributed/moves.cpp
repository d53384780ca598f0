#include "distributed/moves.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "support/floats.h"

namespace flexc::distributed {

namespace {

using ranks::Move;

// Bytes of an element on either side.
struct ElementSizes {
    long long from = 0, to = 0;
};

// Whether all runs begin and end at multiples of `count` elements, so that these can be moved as
// one unit.
bool has_units(const Move& move, const ElementSizes& element, long long count) {
    const int last = move.rank - 1;
    const auto is_multiple = [&](const void* data, const long long* strides, long long size) {
        const long long unit = size * count;
        return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(unit) == 0 &&
               strides[last] == size && std::all_of(strides, strides + last, [&](long long stride) {
                   return stride % unit == 0;
               });
    };
    return move.extents[last] % count == 0 &&
           is_multiple(move.from, move.from_strides, element.from) &&
           is_multiple(move.to, move.to_strides, element.to);
}

void unite(Move& move, const ElementSizes& element, long long count) {
    const int last = move.rank - 1;
    move.extents[last] /= count;
    move.from_strides[last] = element.from * count;
    move.to_strides[last] = element.to * count;
}

// Drops dims of one element, and joins dims that both tensors traverse as one.
Move walk_of(const TensorView& from, const TensorView& to, const ElementSizes& element) {
    Move move{.from = static_cast<const char*>(from.data), .to = static_cast<char*>(to.data)};
    move.units = from.elements();
    for (int i = 0; i < from.rank; ++i) {
        const auto dim = static_cast<std::size_t>(i);
        const long long extent = from.shape[dim];
        if (extent == 1) continue;
        const long long from_stride = from.strides[dim] * element.from,
                        to_stride = to.strides[dim] * element.to;
        const int last = move.rank - 1;
        if (move.rank > 0 && move.from_strides[last] == extent * from_stride &&
            move.to_strides[last] == extent * to_stride)
            move.extents[last] *= extent;
        else
            move.extents[move.rank++] = extent;
        move.from_strides[move.rank - 1] = from_stride;
        move.to_strides[move.rank - 1] = to_stride;
    }
    if (move.rank == 0) {
        move.rank = 1;
        move.extents[0] = 1;
        move.from_strides[0] = element.from;
        move.to_strides[0] = element.to;
    }
    return move;
}

Move by_elements(const TensorView& from, const TensorView& to, Move::Kind kind) {
    const ElementSizes element{static_cast<long long>(size_of(from.dtype)),
                               static_cast<long long>(size_of(to.dtype))};
    Move move = walk_of(from, to, element);
    move.kind = kind;
    constexpr long long kFour = 4;
    move.by_fours = has_units(move, element, kFour);
    if (move.by_fours) {
        unite(move, element, kFour);
        move.units /= kFour;
    }
    return move;
}

Move as_it_is(const TensorView& from, const TensorView& to) {
    const auto size = static_cast<long long>(size_of(from.dtype));
    const ElementSizes element{size, size};
    Move move = walk_of(from, to, element);
    long long count = 16 / size;
    while (count > 1 && !has_units(move, element, count))
        count /= 2;
    if (count > 1) {
        unite(move, element, count);
        move.units /= count;
    }
    switch (size * count) {
    case 1: move.kind = Move::kCopy1; break;
    case 2: move.kind = Move::kCopy2; break;
    case 4: move.kind = Move::kCopy4; break;
    case 8: move.kind = Move::kCopy8; break;
    default: move.kind = Move::kCopy16; break;
    }
    return move;
}

template <typename Format> void widen(const char* from, char* to) {
    typename Format::Bits bits;
    std::memcpy(&bits, from, sizeof bits);
    const float value = Format::widen(bits);
    std::memcpy(to, &value, sizeof value);
}
template <typename Format> void narrow(const char* from, char* to) {
    float value = 0;
    std::memcpy(&value, from, sizeof value);
    const typename Format::Bits bits = Format::narrow(value);
    std::memcpy(to, &bits, sizeof bits);
}
void add_one(const char* from, char* to) {
    float more = 0, sum = 0;
    std::memcpy(&more, from, sizeof more);
    std::memcpy(&sum, to, sizeof sum);
    sum += more;
    std::memcpy(to, &sum, sizeof sum);
}

// Calls visit(from, to) for each run of the last dim.
template <typename Visit> void each_run(const Move& move, Visit visit) {
    const int last = move.rank - 1;
    const long long runs = move.units / move.extents[last];
    std::array<long long, Move::kMostDims> index{};
    for (long long run = 0; run < runs; ++run) {
        const char* from = move.from;
        char* to = move.to;
        for (int dim = 0; dim < last; ++dim) {
            from += index[static_cast<std::size_t>(dim)] * move.from_strides[dim];
            to += index[static_cast<std::size_t>(dim)] * move.to_strides[dim];
        }
        visit(from, to);
        for (int dim = last; dim-- > 0;) {
            if (++index[static_cast<std::size_t>(dim)] < move.extents[dim]) break;
            index[static_cast<std::size_t>(dim)] = 0;
        }
    }
}

// Calls element(from, to) for each element; `size` is that of one.
template <typename Element>
void each_element(const Move& move, ElementSizes size, Element element) {
    const int last = move.rank - 1;
    const long long count = move.by_fours ? 4 : 1;
    each_run(move, [&](const char* from, char* to) {
        for (long long i = 0; i < move.extents[last]; ++i)
            for (long long j = 0; j < count; ++j)
                element(from + i * move.from_strides[last] + j * size.from,
                        to + i * move.to_strides[last] + j * size.to);
    });
}

void copy_units(const Move& move, std::size_t unit) {
    const int last = move.rank - 1;
    const auto bytes = static_cast<long long>(unit);
    const bool is_whole = move.from_strides[last] == bytes && move.to_strides[last] == bytes;
    each_run(move, [&](const char* from, char* to) {
        if (is_whole) {
            std::memcpy(to, from, static_cast<std::size_t>(move.extents[last]) * unit);
            return;
        }
        for (long long i = 0; i < move.extents[last]; ++i)
            std::memcpy(to + i * move.to_strides[last], from + i * move.from_strides[last], unit);
    });
}

} // namespace

Move move_of(const TensorView& from, const TensorView& to) {
    if (from.dtype == to.dtype) return as_it_is(from, to);
    if (from.dtype == DType::f16) return by_elements(from, to, Move::kFromF16);
    if (from.dtype == DType::bf16) return by_elements(from, to, Move::kFromBf16);
    return by_elements(from, to,
                       to.dtype == DType::f16    ? Move::kToF16
                       : to.dtype == DType::bf16 ? Move::kToBf16
                                                 : Move::kToF64);
}

Move addition_of(const TensorView& from, const TensorView& to) {
    return by_elements(from, to, Move::kAdd);
}

void run(const Move& move) {
    if (move.units == 0) return;
    switch (move.kind) {
    case Move::kCopy1: return copy_units(move, 1);
    case Move::kCopy2: return copy_units(move, 2);
    case Move::kCopy4: return copy_units(move, 4);
    case Move::kCopy8: return copy_units(move, 8);
    case Move::kCopy16: return copy_units(move, 16);
    case Move::kFromF16: return each_element(move, {2, 4}, widen<support::F16>);
    case Move::kFromBf16: return each_element(move, {2, 4}, widen<support::Bf16>);
    case Move::kToF16: return each_element(move, {4, 2}, narrow<support::F16>);
    case Move::kToBf16: return each_element(move, {4, 2}, narrow<support::Bf16>);
    case Move::kToF64: return each_element(move, {4, 8}, narrow<support::F64>);
    case Move::kAdd: return each_element(move, {4, 4}, add_one);
    }
}

} // namespace flexc::distributed
