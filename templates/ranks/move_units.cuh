// Moves one unit of a Move; called by a thread.
#pragma once

#include "common/element.cuh"
#include "ranks/moves.h"

namespace ranks {

template <typename T, int kCount> struct __align__(sizeof(T) * kCount) Vector {
    T values[kCount];
};
template <typename T> __device__ void copy_unit(const char* from, char* to) {
    *reinterpret_cast<T*>(to) = *reinterpret_cast<const T*>(from);
}
template <typename From, typename To, int kCount>
__device__ void convert_unit(const char* from, char* to) {
    const auto read = *reinterpret_cast<const Vector<From, kCount>*>(from);
    Vector<To, kCount> written;
    for (int i = 0; i < kCount; ++i)
        written.values[i] = flexc_from_float<To>(flexc_to_float(read.values[i]));
    *reinterpret_cast<Vector<To, kCount>*>(to) = written;
}
template <int kCount> __device__ void add_unit(const char* from, char* to) {
    const auto more = *reinterpret_cast<const Vector<float, kCount>*>(from);
    auto sum = *reinterpret_cast<Vector<float, kCount>*>(to);
    for (int i = 0; i < kCount; ++i)
        sum.values[i] += more.values[i];
    *reinterpret_cast<Vector<float, kCount>*>(to) = sum;
}

template <int kCount> __device__ void move_elements(Move::Kind kind, const char* from, char* to) {
    switch (kind) {
    case Move::kFromF16: return convert_unit<flexc_f16, float, kCount>(from, to);
    case Move::kFromBf16: return convert_unit<flexc_bf16, float, kCount>(from, to);
    case Move::kToF16: return convert_unit<float, flexc_f16, kCount>(from, to);
    case Move::kToBf16: return convert_unit<float, flexc_bf16, kCount>(from, to);
    case Move::kToF64: return convert_unit<float, double, kCount>(from, to);
    default: return add_unit<kCount>(from, to);
    }
}
__device__ void move_unit(const Move& move, const char* from, char* to) {
    switch (move.kind) {
    case Move::kCopy1: return copy_unit<unsigned char>(from, to);
    case Move::kCopy2: return copy_unit<unsigned short>(from, to);
    case Move::kCopy4: return copy_unit<unsigned>(from, to);
    case Move::kCopy8: return copy_unit<unsigned long long>(from, to);
    case Move::kCopy16: return copy_unit<Vector<unsigned long long, 2>>(from, to);
    default:
        return move.by_fours ? move_elements<4>(move.kind, from, to)
                             : move_elements<1>(move.kind, from, to);
    }
}

} // namespace ranks
