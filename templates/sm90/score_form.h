// What is known of a program's scores when a kernel is compiled. Included by device and host code.
#pragma once

namespace sm90 {

// A score taken apart: multiplier * score and the addends, or cap * tanh of that. Functions of
// mod.cuh have the values.
struct ScoreForm {
#define FLEXC_MEMBER(type, name) type name = {};
#include "sm90/score_form.def"
};

} // namespace sm90
