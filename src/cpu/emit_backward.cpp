// The parts that only backward functions have: gradients of captured buffers.
#include <algorithm>
#include <map>

#include "cpu/emit_frame.h"
#include "cpu/emit_function.h"
#include "cpu/emit_values.h"
#include "cpu/tile.h"
#include "support/text.h"

namespace flexc::cpu {

using ir::NodeId;

namespace {

// Where the text for some gradients is inserted: in the element loop of a row and after it, or in a
// loop over terms.
struct GradientPlace {
    Block block;
    std::string before, loop, end; // labels around the loop over columns
    std::string column;            // number of the column
    std::string d_modified, shown; // names of both
    std::string access;
};

// The captured gradients of one place: what the loop over columns does for each, and what follows.
struct GradientText {
    std::string phis, steps, after;
};

// next_array: the first unused scratch array; each is used once.
GradientText gradient_text(const std::vector<GradientPlan>& plans, Values& values,
                           const GradientPlace& place, int& next_array) {
    GradientText out;
    std::string block = place.end; // where the text after the loop has come to
    for (const GradientPlan& plan : plans) {
        const ir::NodeId read = plan.gradient.read, partial = plan.gradient.partial;
        const bool by_row = plan.scatter == Scatter::row;
        const bool after_loop = by_row && place.block == Block::element;
        const Values::Address address = values.gradient_address(
            read, after_loop ? Block::row : place.block, after_loop ? out.after : out.steps);
        // Hidden elements and reads outside buffers add nothing, whatever their partial is.
        std::string sends = place.shown;
        if (!by_row && !address.condition.empty()) {
            out.steps += formatted("  %sends{} = and i1 {}, {}\n", read, sends, address.condition);
            sends = formatted("%sends{}", read);
        }
        out.steps += formatted("  %product{0} = fmul float {4}, {1}\n"
                               "  %part{0} = select i1 {2}, float %product{0}, float {3}\n",
                               read, values.value(partial, place.block), sends, literal(0),
                               place.d_modified);
        switch (plan.scatter) {
        case Scatter::row:
            out.phis +=
                formatted("  %total{0} = phi float [ {1}, %{2} ], [ %total{0}_next, %{3} ]\n", read,
                          literal(0), place.before, place.loop);
            out.steps +=
                formatted("  %total{0}_next = fadd reassoc float %total{0}, %part{0}\n", read);
            if (address.condition.empty())
                out.after +=
                    formatted("  %sent{0} = fadd float %total{0}_next, {1}\n", read, literal(-0.0));
            else
                out.after +=
                    formatted("  %sent{0} = select i1 {1}, float %total{0}_next, float {2}\n", read,
                              address.condition, literal(0));
            out.after += formatted("  %before{0} = load float, ptr {1}, align 4\n"
                                   "  %after{0} = fadd float %before{0}, %sent{0}\n"
                                   "  store float %after{0}, ptr {1}, align 4\n",
                                   read, address.pointer);
            break;
        case Scatter::vector:
            out.steps += formatted("  %before{0} = load float, ptr {1}, align 4{2}\n"
                                   "  %after{0} = fadd float %before{0}, %part{0}\n"
                                   "  store float %after{0}, ptr {1}, align 4{2}\n",
                                   read, address.pointer, place.access);
            break;
        case Scatter::element: {
            const int array = next_array;
            next_array += 2;
            const std::string data = values.gradient_base(read);
            out.steps += formatted("  %parts{0} = getelementptr i8, ptr %scratch, i64 {1}\n"
                                   "  %part{0}_p = getelementptr float, ptr %parts{0}, i32 {5}\n"
                                   "  store float %part{0}, ptr %part{0}_p{3}\n"
                                   "  %offsets{0} = getelementptr i8, ptr %scratch, i64 {2}\n"
                                   "  %offset{0}_p = getelementptr i64, ptr %offsets{0}, i32 {5}\n"
                                   "  store i64 {4}, ptr %offset{0}_p{3}\n",
                                   read, array * kArrayBytes, (array + 1) * kArrayBytes,
                                   place.access, address.offset, place.column);
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
                read, array * kArrayBytes, (array + 1) * kArrayBytes, block, literal(0), data);
            block = formatted("scatter{}_end", read);
            break;
        }
        }
    }
    return out;
}

// Gradients of the terms of sums: loops over terms, after the element loop has left d_modified and
// what is shown in two arrays.
class TermGradients {
  public:
    TermGradients(const passes::Mod& mod, const std::vector<GradientPlan>& plans, Values& values) {
        for (const GradientPlan& plan : plans)
            if (const NodeId counter = mod.counters[plan.gradient.read]; counter != ir::kNoNode)
                groups_[counter].plans.push_back(plan);
        for (auto& [counter, group] : groups_) {
            group.block = values.gradient_loop(counter);
            for (const GradientPlan& plan : group.plans) {
                values.need(plan.gradient.partial, group.block);
                values.need_indices(plan.gradient.read, group.block);
            }
        }
    }

    // Text for the end of the element loop.
    std::string store(int first_array, const std::string& access) const {
        if (groups_.empty()) return "";
        return formatted("  %given = getelementptr i8, ptr %scratch, i64 {0}\n"
                         "  %given_p = getelementptr float, ptr %given, i32 %j_element\n"
                         "  store float %d_modified, ptr %given_p{2}\n"
                         "  %seen = getelementptr i8, ptr %scratch, i64 {1}\n"
                         "  %seen_p = getelementptr i32, ptr %seen, i32 %j_element\n"
                         "  %seen_bit = zext i1 %shown to i32\n"
                         "  store i32 %seen_bit, ptr %seen_p{2}\n",
                         first_array * kArrayBytes, (first_array + 1) * kArrayBytes, access);
    }

    std::string loops(Values& values, const LoopMetadata& metadata, int& next_array) const {
        std::string text;
        const std::string access = metadata.access(VectorLoop::terms);
        for (const auto& [counter, group] : groups_) {
            const std::string l = values.letter(group.block), column = values.column(group.block);
            const std::string given =
                formatted("  %{0}given_p = getelementptr float, ptr %given, i32 {1}\n"
                          "  %{0}given = load float, ptr %{0}given_p{2}\n"
                          "  %{0}seen_p = getelementptr i32, ptr %seen, i32 {1}\n"
                          "  %{0}seen_bit = load i32, ptr %{0}seen_p{2}\n"
                          "  %{0}seen = icmp ne i32 %{0}seen_bit, 0\n",
                          l, column, access);
            const GradientText gradients = gradient_text(group.plans, values,
                                                         {.block = group.block,
                                                          .before = l + "term",
                                                          .loop = l + "loop",
                                                          .end = l + "next",
                                                          .column = column,
                                                          .d_modified = formatted("%{}given", l),
                                                          .shown = formatted("%{}seen", l),
                                                          .access = access},
                                                         next_array);
            text += values.loop_text(group.block, {.column_phis = gradients.phis,
                                                   .each = given + gradients.steps,
                                                   .after = gradients.after});
        }
        return text;
    }

  private:
    struct Group {
        Block block = Block::element;
        std::vector<GradientPlan> plans;
    };
    std::map<NodeId, Group> groups_; // by counter
};

// Text for one element of the backward pass: the probability, then the gradients of the modified
// score and of q·k.
std::string backward_element(const passes::Mod& mod, const Values& values,
                             const std::string& access, bool masked) {
    std::string text = modified_score(mod, values, masked);
    text += formatted(
        "  %is_number = fcmp une float %modified, {0}\n"
        "  %shown = select i1 %visible, i1 %is_number, i1 false\n"
        "  %below = fsub float %modified, %row_reference\n"
        "  %exponent = call float @llvm.fmuladd.f32(float %below, float {1}, float %minus_log2)\n"
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
    const std::vector<GradientPlan> plans = plan_gradients(mod);
    const bool has_terms = passes::has_gradients_of_terms(mod);
    const auto scattered =
        static_cast<int>(std::ranges::count(plans, Scatter::element, &GradientPlan::scatter));
    return versions(request, [&](std::string_view name, std::string_view linkage, bool dense,
                                 int first_metadata, std::vector<int>& stride_slots) {
        const LoopMetadata metadata(first_metadata);
        const std::string access = metadata.access(VectorLoop::elements);
        const int given_arrays = 2 * scattered;
        Values values(mod, dense, given_arrays + (has_terms ? 2 : 0), metadata);
        values.need(mod.score, Block::element);
        values.need(mod.d_score, Block::element);
        if (request.masked) values.need(mod.mask, Block::element);
        if (mod.out_of_range != ir::kNoNode) values.need(mod.out_of_range, Block::element);
        const TermGradients of_terms(mod, plans, values);
        std::vector<GradientPlan> of_elements;
        for (const GradientPlan& plan : plans) {
            if (mod.counters[plan.gradient.read] != ir::kNoNode) continue;
            of_elements.push_back(plan);
            values.need(plan.gradient.partial, Block::element);
            values.need_indices(plan.gradient.read,
                                plan.scatter == Scatter::row ? Block::row : Block::element);
        }
        values.emit();
        const Outside outside = outside_pieces(mod, values);
        int next_array = 0;
        const GradientText gradients = gradient_text(of_elements, values,
                                                     {.block = Block::element,
                                                      .before = "row_ready",
                                                      .loop = "element_loop",
                                                      .end = "element_end",
                                                      .column = "%j_element",
                                                      .d_modified = "%d_modified",
                                                      .shown = "%shown",
                                                      .access = access},
                                                     next_array);
        const std::string term_loops = of_terms.loops(values, metadata, next_array);

        std::string row =
            "  %row_scores = getelementptr float, ptr %scores, i64 %row_offset\n"
            "  %row_gradients = getelementptr float, ptr %gradients, i64 %row_offset\n"
            "  %reference_p = getelementptr float, ptr %reference, i64 %row64\n"
            "  %row_reference = load float, ptr %reference_p\n"
            "  %log2_sum_p = getelementptr float, ptr %log2_sum, i64 %row64\n"
            "  %row_log2_sum = load float, ptr %log2_sum_p\n"
            "  %minus_log2 = fneg float %row_log2_sum\n"
            "  %delta_p = getelementptr float, ptr %delta, i64 %row64\n"
            "  %row_delta = load float, ptr %delta_p\n";
        row += formatted("  br label %element_loop\nelement_loop:\n"
                         "  %j_element = phi i32 [ 0, %row_ready ], [ %j_element_next, "
                         "%element_loop ]\n{}{}"
                         "  %score_p = getelementptr float, ptr %row_scores, i32 %j_element\n"
                         "  %gradient_p = getelementptr float, ptr %row_gradients, i32 %j_element\n"
                         "  %raw = load float, ptr %score_p{}\n"
                         "  %d_probability = load float, ptr %gradient_p{}\n"
                         "  %score = fmul float %raw, %scale\n",
                         gradients.phis, outside.phi, access, access);
        row += values.text(Block::element) + backward_element(mod, values, access, request.masked);
        row += gradients.steps + of_terms.store(given_arrays, access) + outside.step;
        row += kElementStep;
        row += formatted("  br i1 %elements_done, label %element_end, label %element_loop{}\n",
                         metadata.latch(VectorLoop::elements));
        row += "element_end:\n" + gradients.after + term_loops + outside.end + "row_end:\n";
        stride_slots = values.dense_slots();
        return FunctionText{frame(name, linkage, values, metadata, row), values.scratch_arrays()};
    });
}

} // namespace flexc::cpu
