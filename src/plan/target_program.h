// A program for a target: a mod, and the options and the architecture of its kernels. Everything
// that choices depend on is computed once, here.
#pragma once

#include "flexc/options.h"
#include "passes/mod.h"
#include "plan/decompositions.h"
#include "plan/kernel.h"
#include "plan/target.h"

namespace flexc::plan {

class TargetProgram {
  public:
    TargetProgram(passes::Mod mod, CompileOptions options, Target target);
    TargetProgram(const TargetProgram&) = delete; // its parts refer to one another
    TargetProgram& operator=(const TargetProgram&) = delete;

    const passes::Mod& mod() const { return mod_; }
    const CompileOptions& options() const { return options_; }
    const Target& target() const { return target_; }
    // The score mod, decomposed: with a 2-D key index, tables in shared memory, copied tiles of
    // shifted reads, products by kinds of keys, or none of these.
    const passes::DecomposedMod& decomposed(const Decomposition& how) const {
        return decompositions_.of(how);
    }

    // Whether ranges computed in the kernel cannot tell which tiles to visit.
    bool needs_block_mask() const { return needs_block_mask_; }
    // Returns what is asked of a kernel of this kind.
    KernelRequest request(KernelKind kind) const;

  private:
    // What forward and backward are asked alike, and what each is asked in addition.
    KernelRequest common_request() const;
    KernelRequest forward_request(KernelRequest request) const;
    KernelRequest backward_request(KernelRequest request) const;

    passes::Mod mod_;
    CompileOptions options_;
    Target target_;
    bool needs_block_mask_;
    Decompositions decompositions_;
    KernelRequest forward_, backward_;
};

} // namespace flexc::plan
