// A score mod in each of the decompositions that a forward can take, and what it may do with each.
#pragma once

#include <optional>
#include <vector>

#include "flexc/options.h"
#include "passes/decompose.h"
#include "plan/kernel.h"
#include "plan/kernel_request.h"

namespace flexc::plan {

class Decompositions {
  public:
    Decompositions(const passes::Mod& mod, const CompileOptions& options, bool has_block_mask);

    const passes::DecomposedMod& of(const Decomposition& how) const;
    // What a forward of this mod, which has a block mask or not, may do with each.
    ScoreTerms terms(const passes::Mod& mod, bool has_block_mask) const;

  private:
    passes::DecomposedMod plain_, by_kinds_, with_tables_, with_aligned_tables_;
    std::vector<passes::DecomposedMod> with_shifts_; // of all, and ever fewer
    passes::KeyIndex2d key_index_2d_;
    std::optional<passes::DecomposedMod> by_index_2d_;
};

} // namespace flexc::plan
