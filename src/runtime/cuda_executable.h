// A program's kernels on one GPU.
#pragma once

#include <memory>

#include "flexc/types.h"
#include "runtime/cuda_plan.h"
#include "runtime/executable.h"

namespace flexc::runtime {

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
