// A program as CUDA text: the header mod.cuh, whose contract is in templates/README.md.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "flexc/types.h"
#include "passes/mod.h"
#include "plan/kernel.h"

namespace flexc::cuda {

struct EmitOptions {
    DType dtype = DType::bf16; // of q, k and v
    int head_dim = 64;
    int head_dim_v = 64;
    std::optional<DType> kv_dtype = {}; // of k and v, where it is another
    bool returns_max_scores = false;    // of forwards
    // The user's program, quoted in a comment; empty: none. Leave it out of texts that are hashed.
    std::string_view source_text;
};

// Whether kernels of this kind compute derivatives of the mod.
bool is_backward(plan::KernelKind kind);

// Backward kinds need a mod with a derivative. `parts` are those of the mod's score, for kernels
// that take it decomposed (KernelConfig::decomposition); for others there are none.
std::string emit_mod(const passes::Mod& mod, const passes::ScoreParts& parts,
                     const plan::KernelConfig& config, const EmitOptions& options);

} // namespace flexc::cuda
