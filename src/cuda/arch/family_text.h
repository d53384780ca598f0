// What the kernels of one family have in mod.cuh beside what all kernels have.
#pragma once

#include <string>
#include <string_view>

#include "cuda/emit.h"
#include "cuda/expressions.h"
#include "passes/decompose.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// What mod.cuh is made of.
struct TextInputs {
    const passes::Mod& mod;
    const passes::ScoreParts& parts;
    const plan::KernelConfig& config;
    const EmitOptions& options;
};

// A function is null where a family has no such text, and returns "" for kernels that have none.
struct FamilyText {
    std::string_view (*includes)(const plan::KernelConfig& config);
    std::string (*constants)(const TextInputs& from);
    std::string_view (*members_of_at)(const plan::KernelConfig& config);
    // Functions that come after struct At, visible() and score().
    std::string (*functions)(const TextInputs& from, const Layout& layout, int mask_instructions);
};

// Returns the text of the kernel's family. Each is in the folder of the family's name.
const FamilyText& family_text(const plan::KernelConfig& config);

} // namespace flexc::cuda
