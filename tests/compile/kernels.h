// From a program's text to a cubin, for tests that need no GPU.
#pragma once

#include <string>
#include <string_view>

#include "api/cuda_kernels.h"
#include "flexc/result.h"
#include "front/compile_text.h"
#include "passes/pipeline.h"

namespace flexc::test {

struct KernelCase {
    std::string mod; // name in the report
    std::string text;
    cuda::KernelKind kind = cuda::KernelKind::forward;
    std::string arch = "sm_90a";
    DType dtype = DType::bf16;
    ForwardKernel forward_kernel = ForwardKernel::generic;
    BackwardKernel backward_kernel = BackwardKernel::generic;
    int head_dim = 64;
    int head_dim_v = 64;
    bool deterministic = false;
};

inline Result<passes::Mod> lower_text(const std::string& text, int head_dim, int head_dim_v,
                                      bool backward, bool report = false,
                                      bool deterministic = false) {
    front::Output output = front::compile_text({.source = {"<test>", text}});
    if (!output.program) return Error{ErrorCode::syntax, output.rendered};
    return passes::lower(std::move(*output.program), {.backward = backward,
                                                      .report_out_of_range = report,
                                                      .deterministic = deterministic,
                                                      .head_dim = head_dim,
                                                      .head_dim_v = head_dim_v});
}

inline Result<api::CompiledKernel> compile_case(const KernelCase& one) {
    auto mod = lower_text(one.text, one.head_dim, one.head_dim_v,
                          one.kind != cuda::KernelKind::forward, false, one.deterministic);
    if (!mod) return mod.error();
    const auto target = api::target_of(one.arch);
    if (!target) return target.error();
    CompileOptions options;
    options.dtype = one.dtype;
    options.forward_kernel = one.forward_kernel;
    options.backward_kernel = one.backward_kernel;
    options.head_dim = one.head_dim;
    options.head_dim_v = one.head_dim_v;
    options.deterministic = one.deterministic;
    options.cache = {.memory = false, .disk = false};
    const auto store = cache::Store::open(options.cache);
    return api::compile_kernel(*mod, options, one.kind, *target, *store);
}

} // namespace flexc::test
