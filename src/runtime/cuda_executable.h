// Loaded kernels on one GPU, and the order in which a pass launches them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/config.h"
#include "runtime/copied_matrices.h"
#include "runtime/executable.h"
#include "runtime/gradient_sums.h"

namespace flexc::runtime {

struct CudaKernel {
    cuda::KernelConfig config;
    KernelInfo info;
    std::string cubin;
};

// What stands in for a kernel that does not do for a call.
enum class Substitute : std::uint8_t {
    any_layout,     // of the tensors
    single_elements // of matrices whose rows are not aligned
};

struct CudaOptions {
    int device = 0;
    DType dtype = DType::bf16;
    int head_dim = 64, head_dim_v = 64;
    std::size_t distance_reads = 0; // passes::distance_reads: what Hopper's backward has expanded
    bool deterministic = false;
    std::vector<ExactGradient> exact_gradients = {}; // these two in deterministic mode alone
    HeadTurns head_turns = {};
    std::vector<CopiedMatrix> copied_matrices = {}; // these two of Hopper's backward
    StoredGradients stored_gradients = {};
    std::optional<CopiedMatrix> copied_biases = {}; // of Hopper's forward
    // Asked for when a call needs it.
    std::function<Result<CudaKernel>(cuda::KernelKind, Substitute)> compile_substitute = {};
    bool report_out_of_range = false;
};

Result<std::shared_ptr<const Executable>> load_cuda(std::vector<CudaKernel> kernels,
                                                    const CudaOptions& options);

} // namespace flexc::runtime
