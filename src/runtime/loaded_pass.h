// A pass whose kernels are loaded on a GPU, and which calls it can compute.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "cuda/tensor_maps.h"
#include "plan/pass.h"
#include "runtime/cuda_plan.h"
#include "runtime/executable.h"

namespace flexc::runtime {

struct LoadedPass {
    plan::PassPlan plan;
    std::vector<cuda::Module> modules; // in the order of PassPlan::kernels
    // The function of each step, in the order of PassPlan::steps; none for fills.
    std::vector<std::optional<cuda::Function>> functions;
};
// Takes the pass's plan.
Result<LoadedPass> load_pass(CudaPass& pass, int device);

// Returns why the pass cannot compute a call; empty if it can.
std::string why_not(const plan::PassPlan& pass, const Call& call, const cuda::TensorForm& form);

} // namespace flexc::runtime
