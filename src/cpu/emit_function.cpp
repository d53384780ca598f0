#include "cpu/emit_function.h"

#include <algorithm>

#include "cpu/emit_frame.h"
#include "cpu/emit_values.h"
#include "cpu/tile.h"
#include "support/text.h"

namespace flexc::cpu {

namespace {

using ir::NodeId;

// The loop of a row over its elements: modified scores and their maximum. A NaN counts as inf in
// the maximum, so that comparisons are ordered; the row becomes NaN all the same.
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
    text += formatted("  br i1 %elements_done, label %row_maximum, label %element_loop{}\n",
                      metadata.latch(VectorLoop::elements));
    return text;
}

// The score that a row's exponents are relative to. A row with nothing visible so far is relative
// to 0, where exp(-inf) is 0.
std::string reference_of(std::string_view maximum, std::string_view name) {
    return formatted("  %{1}_is_empty = fcmp oeq float {0}, {2}\n"
                     "  %{1} = select i1 %{1}_is_empty, float {3}, float {0}\n",
                     maximum, name, kMinusInfinity, literal(0));
}

// The end of a row: its running maximum, and the factor for what was summed before.
std::string running_maximum(const Outside& outside) {
    std::string text = "row_maximum:\n"
                       "  %row_max_p = getelementptr float, ptr %row_max, i64 %row64\n"
                       "  %correction_p = getelementptr float, ptr %row_correction, i64 %row64\n"
                       "  %old_max = load float, ptr %row_max_p\n"
                       "  %rises = fcmp ogt float %max_next, %old_max\n"
                       "  %new_max = select i1 %rises, float %max_next, float %old_max\n";
    text += reference_of("%new_max", "row_reference");
    text += formatted("  %old_below = fsub float %old_max, %row_reference\n"
                      "  %old_exponent = fmul float %old_below, {}\n"
                      "  %correction = call float @flexc_softmax_exp2(float %old_exponent)\n"
                      "  store float %new_max, ptr %row_max_p\n"
                      "  store float %correction, ptr %correction_p\n",
                      kLog2E);
    return text + outside.end + "row_end:\n";
}

// A second loop over rows: probabilities relative to the running maximum, and their sum. Rows of
// either loop do not wait for each other, whereas a row's probabilities wait for its maximum. The
// difference comes before the factor: of equal scores it is 0 however large they are.
std::string probability_loops(const LoopMetadata& metadata) {
    const std::string access = metadata.access(VectorLoop::probabilities);
    std::string text = "  br label %sum_row_loop\nsum_row_loop:\n"
                       "  %sum_row = phi i32 [ 0, %exit ], [ %sum_row_next, %sum_row_end ]\n"
                       "  %sum_row64 = zext i32 %sum_row to i64\n"
                       "  %sum_row_offset = mul i64 %sum_row64, %stride\n"
                       "  %sum_row_scores = getelementptr float, ptr %scores, i64 %sum_row_offset\n"
                       "  %sum_row_max_p = getelementptr float, ptr %row_max, i64 %sum_row64\n"
                       "  %sum_row_max = load float, ptr %sum_row_max_p\n";
    text += reference_of("%sum_row_max", "sum_reference");
    text +=
        formatted("  br label %probability_loop\nprobability_loop:\n"
                  "  %j_probability = phi i32 [ 0, %sum_row_loop ], [ %j_probability_next, "
                  "%probability_loop ]\n"
                  "  %sum = phi float [ {0}, %sum_row_loop ], [ %sum_next, %probability_loop ]\n"
                  "  %entry_p = getelementptr float, ptr %sum_row_scores, i32 %j_probability\n"
                  "  %exponent_score = load float, ptr %entry_p{2}\n"
                  "  %below = fsub float %exponent_score, %sum_reference\n"
                  "  %exponent = fmul float %below, {1}\n"
                  "  %probability = call float @flexc_softmax_exp2(float %exponent)\n"
                  "  store float %probability, ptr %entry_p{2}\n"
                  "  %sum_next = fadd reassoc float %sum, %probability\n",
                  literal(0), kLog2E, access);
    text +=
        formatted("  %j_probability_next = add nuw nsw i32 %j_probability, 1\n"
                  "  %probabilities_done = icmp eq i32 %j_probability_next, %columns\n"
                  "  br i1 %probabilities_done, label %sum_row_end, label %probability_loop{}\n",
                  metadata.latch(VectorLoop::probabilities));
    text += "sum_row_end:\n"
            "  %row_sum_p = getelementptr float, ptr %row_sum, i64 %sum_row64\n"
            "  %sum_correction_p = getelementptr float, ptr %row_correction, i64 %sum_row64\n"
            "  %old_sum = load float, ptr %row_sum_p\n"
            "  %sum_correction = load float, ptr %sum_correction_p\n"
            "  %kept_sum = fmul float %old_sum, %sum_correction\n"
            "  %new_sum = fadd float %kept_sum, %sum_next\n"
            "  store float %new_sum, ptr %row_sum_p\n"
            "  %sum_row_next = add nuw nsw i32 %sum_row, 1\n"
            "  %sum_rows_done = icmp eq i32 %sum_row_next, %rows\n"
            "  br i1 %sum_rows_done, label %sums_done, label %sum_row_loop\nsums_done:\n";
    return text;
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
        const std::string row =
            score_loop(mod, values, outside, metadata, request.masked) + running_maximum(outside);
        stride_slots = values.dense_slots();
        return FunctionText{
            frame(name, linkage, values, metadata, row, probability_loops(metadata)),
            values.scratch_arrays()};
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
