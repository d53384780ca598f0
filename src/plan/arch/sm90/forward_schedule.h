// When the warpgroups of a chosen forward multiply, rescale and compute powers of two.
#pragma once

#include "plan/arch/sm90/forward_choice.h"

namespace flexc::plan::sm90 {

constexpr int kMostPolynomials = 4;
// Whether the softmax can compute powers of two by polynomials. It cannot with a 2-D key index,
// with kinds of keys, if keys start at the highest, if products are added to tables, or if they
// bring all that is added.
bool may_take_polynomials(const KernelRequest& request, Reads reads);

// Returns the schedule with its ping-pong, polynomials and rescaling, as measured on an H200. With
// ping-pong of MMAs, one warpgroup reads values for elements while the other one waits.
ForwardSchedule tuned_schedule(const Choice& choice);

} // namespace flexc::plan::sm90
