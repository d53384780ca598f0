// The text of one kernel of a mod.
#pragma once

#include <string>

#include "cuda/emit.h"

namespace flexc::test {

inline std::string emitted(const passes::Mod& mod, const plan::KernelConfig& config,
                           const cuda::EmitOptions& options = {}) {
    using plan::Decomposition;
    if (config.decomposition == Decomposition::none)
        return cuda::emit_mod(mod, {}, config, options);
    const passes::DecomposedMod decomposed =
        config.decomposition == Decomposition::with_aligned_tables
            ? passes::decompose_score_with_aligned_tables(mod)
        : config.decomposition == Decomposition::with_tables
            ? passes::decompose_score_with_tables(mod)
            : passes::decompose_score(mod, config.key_width);
    return cuda::emit_mod(decomposed.mod, decomposed.parts, config, options);
}

} // namespace flexc::test
