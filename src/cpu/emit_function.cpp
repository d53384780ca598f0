#include "cpu/emit_function.h"

#include <algorithm>

#include "cpu/emit_frame.h"
#include "cpu/emit_values.h"
#include "cpu/tile.h"
#include "support/text.h"

namespace flexc::cpu {

namespace {

using ir::NodeId;

// First loop of a row: modified scores and their maximum. A NaN counts as inf in the maximum, so
// that comparisons are ordered; the row becomes NaN all the same.
std::string score_loop(const passes::Mod& mod, const Values& values, const Outside& outside,
                       const LoopMetadata& metadata, bool masked) {
    const std::string access = metadata.access(VectorLoop::elements);
    std::string text =
        "  %row_scores = getelementptr float, ptr %scores, i64 %row_offset\n"
        "  br label %element_loop\nelement_loop:\n"
        "  %j_element = phi i32 [ 0, %row_ready ], [ %j_element_next, %element_loop ]\n";
    text += formatted("  %max = phi float [ {}, %row_ready ], [ %max_next, %element_loop ]\n{}",
                      kMinusInfinity, outside.phi);
    text += "  %score_p = getelementptr float, ptr %row_scores, i32 %j_element\n";
    text += formatted("  %raw = load float, ptr %score_p{}\n"
                      "  %score = fmul float %raw, %scale\n",
                      access);
    text += values.text(Block::element) + modified_score(mod, values, masked);
    text += formatted("  %kept = select i1 %visible, float %modified, float {}\n"
                      "  store float %kept, ptr %score_p{}\n"
                      "  %is_nan = fcmp uno float %kept, {}\n"
                      "  %ordered = select i1 %is_nan, float 0x7FF0000000000000, float %kept\n"
                      "  %greater = fcmp nnan nsz ogt float %ordered, %max\n"
                      "  %max_next = select nnan nsz i1 %greater, float %ordered, float %max\n",
                      kMinusInfinity, access, literal(0));
    text += outside.step;
    text += kElementStep;
    text += formatted("  br i1 %elements_done, label %row_softmax, label %element_loop{}\n",
                      metadata.latch(VectorLoop::elements));
    return text;
}

// Second loop of a row: probabilities relative to the running maximum, and their sum. A row with
// nothing visible so far is relative to 0, where exp(-inf) is 0. The difference comes before the
// factor: of equal scores it is 0 however large they are.
std::string probability_loop(const Outside& outside, const LoopMetadata& metadata) {
    const std::string access = metadata.access(VectorLoop::probabilities);
    std::string text = "row_softmax:\n"
                       "  %row_max_p = getelementptr float, ptr %row_max, i64 %row64\n"
                       "  %row_sum_p = getelementptr float, ptr %row_sum, i64 %row64\n"
                       "  %correction_p = getelementptr float, ptr %row_correction, i64 %row64\n"
                       "  %old_max = load float, ptr %row_max_p\n"
                       "  %old_sum = load float, ptr %row_sum_p\n"
                       "  %rises = fcmp ogt float %max_next, %old_max\n"
                       "  %new_max = select i1 %rises, float %max_next, float %old_max\n";
    text += formatted("  %is_empty = fcmp oeq float %new_max, {0}\n"
                      "  %row_reference = select i1 %is_empty, float {1}, float %new_max\n"
                      "  %old_below = fsub float %old_max, %row_reference\n"
                      "  %old_exponent = fmul float %old_below, {2}\n"
                      "  %correction = call float @flexc_softmax_exp2(float %old_exponent)\n"
                      "  br label %probability_loop\nprobability_loop:\n"
                      "  %j_probability = phi i32 [ 0, %row_softmax ], [ %j_probability_next, "
                      "%probability_loop ]\n"
                      "  %sum = phi float [ {1}, %row_softmax ], [ %sum_next, %probability_loop ]\n"
                      "  %entry_p = getelementptr float, ptr %row_scores, i32 %j_probability\n"
                      "  %exponent_score = load float, ptr %entry_p{3}\n"
                      "  %below = fsub float %exponent_score, %row_reference\n"
                      "  %exponent = fmul float %below, {2}\n"
                      "  %probability = call float @flexc_softmax_exp2(float %exponent)\n"
                      "  store float %probability, ptr %entry_p{3}\n"
                      "  %sum_next = fadd reassoc float %sum, %probability\n",
                      kMinusInfinity, literal(0), kLog2E, access);
    text += formatted("  %j_probability_next = add nuw nsw i32 %j_probability, 1\n"
                      "  %probabilities_done = icmp eq i32 %j_probability_next, %columns\n"
                      "  br i1 %probabilities_done, label %row_store, label %probability_loop{}\n",
                      metadata.latch(VectorLoop::probabilities));
    text += "row_store:\n"
            "  %kept_sum = fmul float %old_sum, %correction\n"
            "  %new_sum = fadd float %kept_sum, %sum_next\n"
            "  store float %new_max, ptr %row_max_p\n"
            "  store float %new_sum, ptr %row_sum_p\n"
            "  store float %correction, ptr %correction_p\n";
    return text + outside.end + "row_end:\n";
}

} // namespace

FunctionText emit_forward(const passes::Mod& mod, const FunctionRequest& request) {
    return versions(request, [&](std::string_view name, std::string_view linkage, bool dense,
                                 int first_metadata, std::vector<int>& stride_slots) {
        const LoopMetadata metadata(first_metadata);
        Values values(mod, dense, 0, metadata);
        values.need(mod.score, Block::element);
        if (request.masked) values.need(mod.mask, Block::element);
        if (mod.out_of_range != ir::kNoNode) values.need(mod.out_of_range, Block::element);
        values.emit();
        const Outside outside = outside_pieces(mod, values);
        const std::string row = score_loop(mod, values, outside, metadata, request.masked) +
                                probability_loop(outside, metadata);
        stride_slots = values.dense_slots();
        return FunctionText{frame(name, linkage, values, metadata, row), values.scratch_arrays()};
    });
}

FunctionText emit_band(const passes::Mod& mod, const FunctionRequest& request) {
    const LoopMetadata metadata(request.first_metadata);
    Values values(mod, false, 0, metadata);
    for (NodeId bound : mod.band.low)
        values.need(bound, Block::entry);
    for (NodeId bound : mod.band.high)
        values.need(bound, Block::entry);
    const analysis::Clamps clamps = mod.band.clamps.value_or(analysis::Clamps());
    for (NodeId bound : clamps.nodes())
        if (bound != ir::kNoNode) values.need(bound, Block::entry);
    values.emit();
    std::string bounds;
    auto meet = [&](std::span<const NodeId> nodes, std::string_view start,
                    std::string_view function, TileField field) {
        std::string so_far(start);
        for (NodeId bound : nodes) {
            const std::string wide = values.wide_integer(bound, Block::entry, bounds);
            const std::string next = formatted("%{}{}", function, bound);
            bounds += formatted("  {} = call i64 @llvm.{}.i64(i64 {}, i64 {})\n", next, function,
                                so_far, wide);
            so_far = next;
        }
        bounds += formatted("  %{0}_p = getelementptr i64, ptr %tile, i64 {1}\n"
                            "  store i64 {2}, ptr %{0}_p\n",
                            function, static_cast<int>(field), so_far);
    };
    meet(mod.band.low, "-9223372036854775808", "smax", kTileBandLow);
    meet(mod.band.high, "9223372036854775807", "smin", kTileBandHigh);
    for (int field = kTileFirstClamp; const NodeId bound : clamps.nodes()) {
        if (bound != ir::kNoNode) {
            const std::string wide = values.wide_integer(bound, Block::entry, bounds);
            bounds += formatted("  %clamp{0}_p = getelementptr i64, ptr %tile, i64 {0}\n"
                                "  store i64 {1}, ptr %clamp{0}_p\n",
                                field, wide);
        }
        ++field;
    }
    return {formatted("define void @{}(ptr %args, ptr %tile) nounwind {{\n", request.name) +
                load_fields() + values.text(Block::entry) + bounds + "  ret void\n}\n",
            0};
}

} // namespace flexc::cpu
