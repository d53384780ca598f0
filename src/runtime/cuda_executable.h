// Loaded kernels on one GPU. Executes the steps that the plan has for a pass.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plan/pass.h"
#include "plan/plan.h"
#include "runtime/executable.h"

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
    int most_rows; // SequenceForm::most_rows
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
    std::optional<CudaKernel> lengths;    // the kernel that reads lengths of requests
};

struct CudaOptions {
    int device = 0;
    DType dtype = DType::bf16;
    int head_dim = 64, head_dim_v = 64;
    bool is_ragged = false; // queries are ragged; keys are too, or are not in order
    bool keys_are_in_order = true;
    bool report_out_of_range = false;
};

Result<std::shared_ptr<const Executable>> load_cuda(CudaPlan plan, const CudaOptions& options);

} // namespace flexc::runtime
