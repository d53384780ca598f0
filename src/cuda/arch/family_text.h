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

// Each function returns "" for kernels that have no such text, as those that a family leaves out do
// for all.
struct FamilyText {
    using OfKernel = std::string_view(const plan::KernelConfig& config);
    OfKernel* includes = [](const plan::KernelConfig&) { return std::string_view(); };
    std::string (*constants)(const TextInputs& from) = [](const TextInputs&) {
        return std::string();
    };
    OfKernel* members_of_at = [](const plan::KernelConfig&) { return std::string_view(); };
    // Functions that come after struct At, visible() and score().
    std::string (*functions)(const TextInputs& from, const SymbolTable& symbols,
                             int mask_instructions) = [](const TextInputs&, const SymbolTable&,
                                                         int) { return std::string(); };
    // Whether the forward and the fused backward evaluate a mask part by part, as mod::MaskPart.
    bool has_mask_parts = false;
    // Whether mod.cuh tells the family's backward by policies which derivatives and gradients a
    // program has, so that templates choose a class for each; else it has functions that add an
    // element's gradients.
    bool has_backward_policies = false;
};

// Returns the text of the kernel's family. Each is in the folder of the family's name.
const FamilyText& family_text(const plan::KernelConfig& config);
// Whether the kernel is the main one of such a backward, or runs before or after it.
bool has_backward_policies(const plan::KernelConfig& config);

} // namespace flexc::cuda
