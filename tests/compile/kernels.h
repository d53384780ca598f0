// From a program's text to a cubin, for tests that need no GPU.
#pragma once

#include <string>
#include <string_view>

#include "cuda/emit.h"
#include "cuda/fill.h"
#include "cuda/fold.h"
#include "cuda/nvrtc.h"
#include "cuda/select.h"
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
    int head_dim = 64;
    int head_dim_v = 64;
};

inline Result<passes::Mod> lower_text(const std::string& text, int head_dim, int head_dim_v,
                                      bool backward, bool report = false) {
    front::Output output = front::compile_text({.source = {"<test>", text}});
    if (!output.program) return Error{ErrorCode::syntax, output.rendered};
    return passes::lower(std::move(*output.program), {.backward = backward,
                                                      .report_out_of_range = report,
                                                      .head_dim = head_dim,
                                                      .head_dim_v = head_dim_v});
}

struct CompiledCase {
    cuda::KernelConfig config;
    cuda::NvrtcOutput output;
};

inline Result<CompiledCase> compile_case(const KernelCase& one) {
    auto mod =
        lower_text(one.text, one.head_dim, one.head_dim_v, one.kind != cuda::KernelKind::forward);
    if (!mod) return mod.error();
    const ir::Graph& graph = mod->program.graph;
    CompiledCase result;
    result.config = cuda::select_kernel({.kind = one.kind,
                                         .arch = cuda::arch_number(one.arch),
                                         .dtype = one.dtype,
                                         .head_dim = one.head_dim,
                                         .head_dim_v = one.head_dim_v,
                                         .has_score_mod = graph[mod->score].op != ir::Op::score,
                                         .has_mask = graph[mod->mask].op != ir::Op::const_bool,
                                         .reads_bias = cuda::reads_bias(*mod)});
    auto filled =
        cuda::fill_template(result.config, cuda::emit_mod(*mod, result.config,
                                                          {.dtype = one.dtype,
                                                           .head_dim = one.head_dim,
                                                           .head_dim_v = one.head_dim_v}));
    if (!filled) return filled.error();
    auto output = cuda::compile_cubin(*filled, one.arch);
    if (!output) return output.error();
    result.output = std::move(*output);
    return result;
}

} // namespace flexc::test
