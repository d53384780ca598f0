// The text of one kernel of a mod.
#pragma once

#include <string>

#include "cuda/emit.h"

namespace flexc::test {

inline std::string emitted(const passes::Mod& mod, const plan::KernelConfig& config,
                           const cuda::EmitOptions& options = {}) {
    using enum plan::Decomposition::Of;
    const plan::Decomposition& taken = config.decomposition;
    if (taken.of == none) return cuda::emit_mod(mod, {}, config, options);
    const passes::DecomposedMod decomposed =
        taken.of == with_aligned_tables ? passes::decompose_score_with_aligned_tables(mod)
        : taken.of == with_tables       ? passes::decompose_score_with_tables(mod)
                                        : passes::decompose_score(mod, taken.key_width);
    return cuda::emit_mod(decomposed.mod, decomposed.parts, config, options);
}

} // namespace flexc::test
