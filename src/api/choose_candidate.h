// Chooses one of a kernel's candidates: they are compiled until one does not spill.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "cuda/fill.h"
#include "cuda/nvrtc.h"
#include "flexc/result.h"
#include "plan/kernel.h"
#include "support/log.h"

namespace flexc::api {

struct Attempt {
    cuda::Translation translation;
    cuda::NvrtcOutput output;
};

// How candidates are compiled. Both functions may be called from several threads.
struct Compiler {
    std::function<Result<Attempt>(std::size_t at)> attempt;
    // Whether a compile beside another one finds an idle processor.
    std::function<bool()> has_room;
};

struct Choice {
    std::size_t at = 0;
    int tolerated_spills = 0; // that candidate's, or more where all spilled more
    Attempt attempt;
};

// The result does not depend on has_room(), which only allows compiling two candidates at once.
Result<Choice> choose_candidate(std::span<const plan::KernelConfig> candidates,
                                const Compiler& compiler, const support::Log& log);

} // namespace flexc::api
