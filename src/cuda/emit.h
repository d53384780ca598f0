// A program as CUDA text: the header mod.cuh, whose contract is in templates/README.md.
#pragma once

#include <string>
#include <string_view>

#include "cuda/config.h"
#include "flexc/types.h"
#include "passes/mod.h"

namespace flexc::cuda {

struct EmitOptions {
    DType dtype = DType::bf16; // of q, k and v
    int head_dim = 64;
    int head_dim_v = 64;
    // The user's program, quoted in a comment; empty: none. Leave it out of texts that are hashed.
    std::string_view source_text;
};

// Backward kinds need a mod with a derivative.
std::string emit_mod(const passes::Mod& mod, const KernelConfig& config,
                     const EmitOptions& options);

} // namespace flexc::cuda
