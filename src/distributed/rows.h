// Rows of [B, H, S, D] tensors in host memory: packed for the way, added up, rounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "flexc/distributed.h"

namespace flexc::distributed {

// The rows from begin on; the same memory. Of [B, H, S, D] or [B, H, S], or along another dim.
TensorView rows_of(const TensorView& tensor, std::int64_t begin, std::int64_t count,
                   std::size_t dim = 2);

// Where a position is in tensors with the rows of these ranges; -1 where they have others.
std::int64_t row_of(std::span<const RowRange> ranges, std::int64_t position);

std::size_t bytes_of(const TensorView& tensor);

// All elements, without gaps, in order.
void pack(const TensorView& from, std::byte* to);
void unpack(const std::byte* from, const TensorView& to);
// Between tensors of one shape and type.
void copy(const TensorView& from, const TensorView& to);
// to += from; `from` without gaps, `to` with any strides; both f32.
void add(const float* from, const TensorView& to);
// As f32 without gaps, from f32, f16 or bf16.
void widen(const TensorView& from, float* to);
// Rounds f32 without gaps to the type of `to`, f32, f16, bf16 or f64.
void round_to(const float* from, const TensorView& to);

} // namespace flexc::distributed
