// A plan with the machine code of its kernels.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "flexc/kernel.h"
#include "flexc/result.h"
#include "plan/pass.h"
#include "plan/plan.h"

namespace flexc::runtime {

struct CudaKernel {
    plan::KernelConfig config;
    KernelInfo info;
    std::string cubin;
};

// One compiled variant of a pass; kernels in the order of PassPlan::kernels.
struct CudaPass {
    plan::PassPlan plan;
    std::vector<CudaKernel> kernels;
};

struct CudaVariant {
    plan::Calls calls;
    int least_rows, most_rows; // of SequenceForm
};

// The variants of a pass, as in plan::KernelPlan. Those after the first are compiled when a plan
// needs them.
struct CudaVariants {
    CudaPass first;
    std::vector<CudaVariant> all;
    std::function<Result<CudaPass>(std::size_t variant)> compile;
};

struct CudaPlan {
    CudaVariants forward;
    std::optional<CudaVariants> backward;
    std::optional<CudaKernel> block_mask; // the kernel that builds block masks
    plan::BlockMaskFacts block_mask_facts;
    std::optional<CudaKernel> lengths; // the kernel that reads lengths of requests
};

} // namespace flexc::runtime
