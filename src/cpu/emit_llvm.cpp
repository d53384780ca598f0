#include "cpu/emit_llvm.h"

#include <algorithm>

#include "cpu/emit_function.h"
#include "cpu/function_names.h"
#include "support/embedded.h"

namespace flexc::cpu {

namespace {

struct Functions {
    std::string text;
    int scratch_arrays = 0;
};

Functions functions(const passes::Mod& mod) {
    Functions all;
    int metadata = 2;
    auto add = [&](auto* emit, std::string_view name, bool masked) {
        const FunctionText one = emit(mod, {name, masked, metadata});
        metadata += kMetadataPerFunction;
        all.text += one.text + "\n";
        all.scratch_arrays = std::max(all.scratch_arrays, one.scratch_arrays);
    };
    const bool has_mask = mod.program.graph[mod.mask].op != ir::Op::const_bool ||
                          mod.program.graph[mod.mask].integer == 0;
    const bool has_full = has_mask && ((mod.band.found() && mod.band.exact) || has_map(mod));
    add(emit_forward, kForwardFunction, has_mask);
    if (has_full) add(emit_forward, kForwardFullFunction, false);
    if (mod.d_score != ir::kNoNode) {
        add(emit_backward, kBackwardFunction, has_mask);
        if (has_full) add(emit_backward, kBackwardFullFunction, false);
    }
    if (mod.band.found()) add(emit_band, kBandFunction, false);
    all.text += "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
                "@flexc_zero = internal constant i64 0\n"
                "!0 = !{!\"llvm.loop.vectorize.enable\", i1 true}\n"
                "!1 = !{!\"llvm.loop.unroll.disable\"}\n";
    return all;
}

} // namespace

bool has_map(const passes::Mod& mod) {
    return mod.out_of_range == ir::kNoNode && // reported for every element
           mod.mask_tier == analysis::MaskTier::tile_tests &&
           !analysis::uses_real_arithmetic(mod.program.graph, mod.mask);
}

Emitted emit_llvm(const passes::Mod& mod) {
    Functions emitted = functions(mod);
    std::string text;
    for (const embedded::EmbeddedFile& file : embedded::cpu_math())
        text += file.text;
    return {text + emitted.text, emitted.scratch_arrays};
}

std::string explain_llvm(const passes::Mod& mod) { return functions(mod).text; }

} // namespace flexc::cpu
