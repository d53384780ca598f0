// What a chosen forward does, in words for users.
#pragma once

#include <string>

#include "plan/arch/sm90/forward_choice.h"
#include "plan/arch/sm90/sm90.h"

namespace flexc::plan::sm90 {

std::string reason_of(const Choice& choice, const Forward& forward);

} // namespace flexc::plan::sm90
