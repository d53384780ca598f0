#include "cpu/emit_function.h"

#include <algorithm>

#include "cpu/emit_frame.h"
#include "cpu/emit_values.h"
#include "cpu/tile.h"
#include "support/text.h"

namespace flexc::cpu {

namespace {

using ir::NodeId;

constexpr std::string_view kLog2E = "0x3FF7154760000000";
constexpr std::string_view kMinusInfinity = "0xFFF0000000000000";

// Pieces of both functions that depend on whether reads outside buffers are reported.
struct Outside {
    std::string phi, step, end;
};
Outside outside_pieces(const passes::Mod& mod, Values& values) {
    if (mod.out_of_range == ir::kNoNode) return {"", "", "  br label %row_end\n"};
    const std::string pointer = values.out_of_range_pointer();
    return {"  %outside = phi i32 [ 0, %row_loop ], [ %outside_next, %element_loop ]\n",
            formatted("  %outside_bit = zext i1 {} to i32\n"
                      "  %outside_next = or i32 %outside, %outside_bit\n",
                      values.value(mod.out_of_range, Block::element)),
            report_outside(pointer)};
}

constexpr std::string_view kElementStep =
    "  %j_element_next = add nuw nsw i32 %j_element, 1\n"
    "  %elements_done = icmp eq i32 %j_element_next, %columns\n";

// The modified score of one element and whether it is visible, under %modified and %visible.
std::string modified_score(const passes::Mod& mod, const Values& values, bool masked) {
    const std::string mask = masked ? values.value(mod.mask, Block::element) : "true";
    return formatted("  %modified = fadd float {}, {}\n"
                     "  %visible = and i1 {}, true\n",
                     values.value(mod.score, Block::element), literal(-0.0), mask);
}

// First loop of a row: modified scores and their maximum. A NaN counts as inf in the maximum, so
// that comparisons are ordered; the row becomes NaN all the same.
std::string score_loop(const passes::Mod& mod, const Values& values, const Outside& outside,
                       const LoopMetadata& metadata, bool masked) {
    const std::string access = metadata.access(VectorLoop::elements);
    std::string text =
        "  %row_scores = getelementptr float, ptr %scores, i64 %row_offset\n"
        "  br label %element_loop\nelement_loop:\n"
        "  %j_element = phi i32 [ 0, %row_loop ], [ %j_element_next, %element_loop ]\n";
    text += formatted("  %max = phi float [ {}, %row_loop ], [ %max_next, %element_loop ]\n{}",
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
// nothing visible so far is relative to 0, where exp(-inf) is 0.
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
                      "  %reference = select i1 %is_empty, float {1}, float %new_max\n"
                      "  %scaled_reference = fmul float %reference, {2}\n"
                      "  %minus_reference = fneg float %scaled_reference\n"
                      "  %old_exponent = call float @llvm.fmuladd.f32(float %old_max, float {2}, "
                      "float %minus_reference)\n"
                      "  %correction = call float @flexc_softmax_exp2(float %old_exponent)\n"
                      "  br label %probability_loop\nprobability_loop:\n"
                      "  %j_probability = phi i32 [ 0, %row_softmax ], [ %j_probability_next, "
                      "%probability_loop ]\n"
                      "  %sum = phi float [ {1}, %row_softmax ], [ %sum_next, %probability_loop ]\n"
                      "  %entry_p = getelementptr float, ptr %row_scores, i32 %j_probability\n"
                      "  %exponent_score = load float, ptr %entry_p{3}\n"
                      "  %exponent = call float @llvm.fmuladd.f32(float %exponent_score, "
                      "float {2}, float %minus_reference)\n"
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
    const KvSlopes slopes(mod);
    return versions(request, [&](std::string_view name, std::string_view linkage, bool dense,
                                 int first_metadata, std::vector<int>& stride_slots) {
        const LoopMetadata metadata(first_metadata);
        Values values(mod, slopes, dense, 0);
        values.need(mod.score, Block::element);
        if (request.masked) values.need(mod.mask, Block::element);
        if (mod.out_of_range != ir::kNoNode) values.need(mod.out_of_range, Block::element);
        values.emit(metadata.group(VectorLoop::columns), metadata.group(VectorLoop::elements));
        const Outside outside = outside_pieces(mod, values);
        const std::string row = score_loop(mod, values, outside, metadata, request.masked) +
                                probability_loop(outside, metadata);
        stride_slots = values.dense_slots();
        return FunctionText{frame(name, linkage, values, metadata, row), values.scratch_arrays()};
    });
}

namespace {

// The captured gradients of one row: what the element loop does for each, and what follows it.
struct GradientText {
    std::string phis, steps, after;
    int scratch_arrays = 0;
};

GradientText gradient_text(const std::vector<GradientPlan>& plans, Values& values,
                           const std::string& access) {
    GradientText out;
    std::string block = "element_end"; // where the text after the loop has come to
    for (std::size_t i = 0; i < plans.size(); ++i) {
        const auto [read, partial] = plans[i].gradient;
        const bool by_row = plans[i].scatter == Scatter::row;
        std::string& place = by_row ? out.after : out.steps;
        const Values::Address address =
            values.gradient_address(read, by_row ? Block::row : Block::element, place);
        // Hidden elements and reads outside send nothing, whatever the partial is there.
        std::string sends = "%shown";
        if (!by_row && !address.condition.empty()) {
            out.steps += formatted("  %sends{} = and i1 %shown, {}\n", i, address.condition);
            sends = formatted("%sends{}", i);
        }
        out.steps += formatted("  %product{0} = fmul float %d_modified, {1}\n"
                               "  %part{0} = select i1 {2}, float %product{0}, float {3}\n",
                               i, values.value(partial, Block::element), sends, literal(0));
        switch (plans[i].scatter) {
        case Scatter::row:
            out.phis += formatted(
                "  %total{0} = phi float [ {1}, %row_loop ], [ %total{0}_next, %element_loop ]\n",
                i, literal(0));
            out.steps +=
                formatted("  %total{0}_next = fadd reassoc float %total{0}, %part{0}\n", i);
            if (address.condition.empty())
                out.after +=
                    formatted("  %sent{0} = fadd float %total{0}_next, {1}\n", i, literal(-0.0));
            else
                out.after +=
                    formatted("  %sent{0} = select i1 {1}, float %total{0}_next, float {2}\n", i,
                              address.condition, literal(0));
            out.after += formatted("  %before{0} = load float, ptr {1}, align 4\n"
                                   "  %after{0} = fadd float %before{0}, %sent{0}\n"
                                   "  store float %after{0}, ptr {1}, align 4\n",
                                   i, address.pointer);
            break;
        case Scatter::vector:
            out.steps += formatted("  %before{0} = load float, ptr {1}, align 4{2}\n"
                                   "  %after{0} = fadd float %before{0}, %part{0}\n"
                                   "  store float %after{0}, ptr {1}, align 4{2}\n",
                                   i, address.pointer, access);
            break;
        case Scatter::element: {
            const int array = out.scratch_arrays;
            out.scratch_arrays += 2;
            const std::string data = values.gradient_base(read);
            out.steps += formatted(
                "  %parts{0} = getelementptr i8, ptr %scratch, i64 {1}\n"
                "  %part{0}_p = getelementptr float, ptr %parts{0}, i32 %j_element\n"
                "  store float %part{0}, ptr %part{0}_p{3}\n"
                "  %offsets{0} = getelementptr i8, ptr %scratch, i64 {2}\n"
                "  %offset{0}_p = getelementptr i64, ptr %offsets{0}, i32 %j_element\n"
                "  store i64 {4}, ptr %offset{0}_p{3}\n",
                i, array * 8 * kMaxColumns, (array + 1) * 8 * kMaxColumns, access, address.offset);
            out.after += formatted(
                "  %from{0} = getelementptr i8, ptr %scratch, i64 {1}\n"
                "  %to{0} = getelementptr i8, ptr %scratch, i64 {2}\n"
                "  br label %scatter{0}\nscatter{0}:\n"
                "  %js{0} = phi i32 [ 0, %{3} ], [ %js{0}_next, %scatter{0}_next ]\n"
                "  %from{0}_p = getelementptr float, ptr %from{0}, i32 %js{0}\n"
                "  %sent{0} = load float, ptr %from{0}_p\n"
                "  %is_some{0} = fcmp une float %sent{0}, {4}\n"
                "  br i1 %is_some{0}, label %scatter{0}_add, label %scatter{0}_next\n"
                "scatter{0}_add:\n"
                "  %to{0}_p = getelementptr i64, ptr %to{0}, i32 %js{0}\n"
                "  %to{0}_offset = load i64, ptr %to{0}_p\n"
                "  %to{0}_a = getelementptr float, ptr {5}, i64 %to{0}_offset\n"
                "  %before{0} = load float, ptr %to{0}_a, align 4\n"
                "  %after{0} = fadd float %before{0}, %sent{0}\n"
                "  store float %after{0}, ptr %to{0}_a, align 4\n"
                "  br label %scatter{0}_next\nscatter{0}_next:\n"
                "  %js{0}_next = add nuw nsw i32 %js{0}, 1\n"
                "  %scatter{0}_done = icmp eq i32 %js{0}_next, %columns\n"
                "  br i1 %scatter{0}_done, label %scatter{0}_end, label %scatter{0}\n"
                "scatter{0}_end:\n",
                i, array * 8 * kMaxColumns, (array + 1) * 8 * kMaxColumns, block, literal(0), data);
            block = formatted("scatter{}_end", i);
            break;
        }
        }
    }
    return out;
}

// One element of the backward pass: probability, then the gradient of the modified score and of
// q·k.
std::string backward_element(const passes::Mod& mod, const Values& values,
                             const std::string& access, bool masked) {
    std::string text = modified_score(mod, values, masked);
    text += formatted(
        "  %is_number = fcmp une float %modified, {0}\n"
        "  %shown = select i1 %visible, i1 %is_number, i1 false\n"
        "  %exponent = call float @llvm.fmuladd.f32(float %modified, float {1}, float %minus_lse)\n"
        "  %weight = call float @flexc_softmax_exp2(float %exponent)\n"
        "  %probability = select i1 %shown, float %weight, float {2}\n"
        "  %centered = fsub float %d_probability, %row_delta\n"
        "  %d_modified = fmul float %probability, %centered\n"
        "  %d_score = fmul float %d_modified, {3}\n"
        "  %d_product = fmul float %d_score, %scale\n"
        "  %d_shown = select i1 %shown, float %d_product, float {2}\n"
        "  store float %probability, ptr %score_p{4}\n"
        "  store float %d_shown, ptr %gradient_p{4}\n",
        kMinusInfinity, kLog2E, literal(0), values.value(mod.d_score, Block::element), access);
    return text;
}

} // namespace

FunctionText emit_backward(const passes::Mod& mod, const FunctionRequest& request) {
    const KvSlopes slopes(mod);
    const std::vector<GradientPlan> plans = plan_gradients(mod, slopes);
    const auto scattered =
        static_cast<int>(std::ranges::count(plans, Scatter::element, &GradientPlan::scatter));
    return versions(request, [&](std::string_view name, std::string_view linkage, bool dense,
                                 int first_metadata, std::vector<int>& stride_slots) {
        const LoopMetadata metadata(first_metadata);
        const std::string access = metadata.access(VectorLoop::elements);
        Values values(mod, slopes, dense, 2 * scattered);
        values.need(mod.score, Block::element);
        values.need(mod.d_score, Block::element);
        if (request.masked) values.need(mod.mask, Block::element);
        if (mod.out_of_range != ir::kNoNode) values.need(mod.out_of_range, Block::element);
        for (const GradientPlan& plan : plans) {
            values.need(plan.gradient.partial, Block::element);
            values.need_indices(plan.gradient.read,
                                plan.scatter == Scatter::row ? Block::row : Block::element);
        }
        values.emit(metadata.group(VectorLoop::columns), metadata.group(VectorLoop::elements));
        const Outside outside = outside_pieces(mod, values);
        const GradientText gradients = gradient_text(plans, values, access);

        std::string row =
            "  %row_scores = getelementptr float, ptr %scores, i64 %row_offset\n"
            "  %row_gradients = getelementptr float, ptr %gradients, i64 %row_offset\n"
            "  %lse_p = getelementptr float, ptr %lse, i64 %row64\n"
            "  %row_lse = load float, ptr %lse_p\n"
            "  %delta_p = getelementptr float, ptr %delta, i64 %row64\n"
            "  %row_delta = load float, ptr %delta_p\n";
        row += formatted("  %scaled_lse = fmul float %row_lse, {}\n"
                         "  %minus_lse = fneg float %scaled_lse\n"
                         "  br label %element_loop\nelement_loop:\n"
                         "  %j_element = phi i32 [ 0, %row_loop ], [ %j_element_next, "
                         "%element_loop ]\n{}{}"
                         "  %score_p = getelementptr float, ptr %row_scores, i32 %j_element\n"
                         "  %gradient_p = getelementptr float, ptr %row_gradients, i32 %j_element\n"
                         "  %raw = load float, ptr %score_p{}\n"
                         "  %d_probability = load float, ptr %gradient_p{}\n"
                         "  %score = fmul float %raw, %scale\n",
                         kLog2E, gradients.phis, outside.phi, access, access);
        row += values.text(Block::element) + backward_element(mod, values, access, request.masked);
        row += gradients.steps + outside.step;
        row += kElementStep;
        row += formatted("  br i1 %elements_done, label %element_end, label %element_loop{}\n",
                         metadata.latch(VectorLoop::elements));
        row += "element_end:\n" + gradients.after + outside.end + "row_end:\n";
        stride_slots = values.dense_slots();
        return FunctionText{frame(name, linkage, values, metadata, row), values.scratch_arrays()};
    });
}

FunctionText emit_band(const passes::Mod& mod, const FunctionRequest& request) {
    const KvSlopes slopes(mod);
    const LoopMetadata metadata(request.first_metadata);
    Values values(mod, slopes, false, 0);
    for (NodeId bound : mod.band.low)
        values.need(bound, Block::entry);
    for (NodeId bound : mod.band.high)
        values.need(bound, Block::entry);
    values.emit(metadata.group(VectorLoop::columns), metadata.group(VectorLoop::elements));
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
    return {formatted("define void @{}(ptr %args, ptr %tile) nounwind {{\n", request.name) +
                load_fields() + values.text(Block::entry) + bounds + "  ret void\n}\n",
            0};
}

} // namespace flexc::cpu
