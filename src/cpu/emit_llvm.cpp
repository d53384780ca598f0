#include "cpu/emit_llvm.h"

#include <algorithm>

#include "cpu/emit_function.h"
#include "cpu/function_names.h"
#include "passes/sink.h"
#include "support/embedded.h"

namespace flexc::cpu {

namespace {

Emitted functions(const passes::Mod& mod) {
    Emitted all;
    int metadata = 2;
    auto add = [&](const FunctionText& one) {
        metadata += kMetadataPerFunction;
        all.text += one.text + "\n";
        all.scratch_arrays = std::max(all.scratch_arrays, one.scratch_arrays);
    };
    const bool has_mask = mod.program.graph[mod.mask].op != ir::Op::const_bool ||
                          mod.program.graph[mod.mask].integer == 0;
    const bool has_exact_band = mod.band.found() && mod.band.exact;
    // If reads outside buffers are reported, every element must be evaluated, so all tiles are
    // visited.
    const bool may_skip_tiles = mod.out_of_range == ir::kNoNode;
    const bool has_full = has_mask && (has_exact_band || may_skip_tiles);
    add(emit_forward(mod, {kForwardFunction, has_mask, metadata}));
    if (has_full) add(emit_forward(mod, {kForwardFullFunction, false, metadata}));
    if (mod.d_score != ir::kNoNode) {
        add(emit_backward(mod, {kBackwardFunction, has_mask, metadata}));
        if (has_full) add(emit_backward(mod, {kBackwardFullFunction, false, metadata}));
    }
    if (mod.sink != ir::kNoNode) {
        passes::Mod sink = passes::sink_mod(mod);
        add(emit_forward(sink, {kSinkFunction, false, metadata}));
        // The sink's weight is already part of the gradient that this function is given.
        sink.score = sink.d_score;
        if (!sink.gradients.empty())
            add(emit_backward(sink, {kSinkBackwardFunction, false, metadata}));
    }
    if (mod.band.found()) add(emit_band(mod, {kBandFunction, false, metadata}));
    if (may_skip_tiles) {
        const bool masked = has_mask && !has_exact_band;
        passes::Mod evaluated = mod;
        const auto hidden = passes::find_hidden_scores(evaluated);
        all.hides_scores = hidden.has_value();
        all.has_mask_function = masked || hidden;
        if (all.has_mask_function)
            add(emit_mask(evaluated, hidden, {kMaskFunction, masked, metadata}));
        if (masked && has_intervals(mod))
            add(emit_intervals(mod, {kIntervalsFunction, false, metadata}));
    }
    all.text += "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
                "@flexc_zero = internal constant i64 0\n"
                "!0 = !{!\"llvm.loop.vectorize.enable\", i1 true}\n"
                "!1 = !{!\"llvm.loop.unroll.disable\"}\n";
    return all;
}

} // namespace

bool has_block_mask(const passes::Mod& mod) {
    return mod.out_of_range == ir::kNoNode && // reported for every element
           mod.mask_tier == analysis::MaskTier::tile_tests &&
           !analysis::uses_real_arithmetic(mod.program.graph, mod.mask);
}

Emitted emit_llvm(const passes::Mod& mod) {
    Emitted emitted = functions(mod);
    std::string mathematics;
    for (const embedded::EmbeddedFile& file : embedded::cpu_math())
        mathematics += file.text;
    emitted.text = mathematics + emitted.text;
    return emitted;
}

std::string generated_llvm(const passes::Mod& mod) { return functions(mod).text; }

} // namespace flexc::cpu
