// Describes a copy, conversion or sum of tensors as few runs of large units.
#pragma once

#include "flexc/types.h"
#include "ranks/moves.h"

namespace flexc::distributed {

// Copies a tensor to one of the same shape, of the same type, or with f32 on one side and f16, bf16
// or (`to` only) f64 on the other.
ranks::Move move_of(const TensorView& from, const TensorView& to);
// to += from, both f32.
ranks::Move addition_of(const TensorView& from, const TensorView& to);

// Runs a move in host memory.
void run(const ranks::Move& move);

} // namespace flexc::distributed
