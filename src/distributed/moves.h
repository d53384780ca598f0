// A copy, conversion or sum of tensors as few runs of large units.
#pragma once

#include "flexc/types.h"
#include "ranks/moves.h"

namespace flexc::distributed {

// From a tensor to one of its shape: of one type, or one of them f32 and the other f16, bf16 or
// (`to` alone) f64.
ranks::Move move_of(const TensorView& from, const TensorView& to);
// to += from, both f32.
ranks::Move addition_of(const TensorView& from, const TensorView& to);

// In host memory.
void run(const ranks::Move& move);

} // namespace flexc::distributed
