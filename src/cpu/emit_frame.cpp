#include "cpu/emit_frame.h"

#include "cpu/tile.h"
#include "support/text.h"

namespace flexc::cpu {

namespace {

// Metadata numbers of one function, from first_ on: groups, loops, lists of groups, an outer loop.
constexpr int kLoops = 4;
constexpr int kNumbersPerVersion = 3 * kLoops + 1;
static_assert(2 * kNumbersPerVersion <= kMetadataPerFunction);

struct Field {
    std::string_view name;
    TileField field;
    std::string_view type; // ptr, i64, or i32 and float, which are cut from the word
};
constexpr Field kFields[] = {
    {"scores", kTileScores, "ptr"},
    {"gradients", kTileGradients, "ptr"},
    {"stride", kTileStride, "i64"},
    {"row_max", kTileRowMax, "ptr"},
    {"row_sum", kTileRowSum, "ptr"},
    {"row_correction", kTileRowCorrection, "ptr"},
    {"reference", kTileReference, "ptr"},
    {"log2_sum", kTileLog2Sum, "ptr"},
    {"delta", kTileDelta, "ptr"},
    {"scratch", kTileScratch, "ptr"},
    {"b", kTileB, "i32"},
    {"h", kTileH, "i32"},
    {"h_kv", kTileHKv, "i32"},
    {"q_begin", kTileQBegin, "i32"},
    {"kv_begin", kTileKvBegin, "i32"},
    {"rows", kTileRows, "i32"},
    {"columns", kTileColumns, "i32"},
    {"scale", kTileScale, "float"},
};

// Text for the end of a row: sets the flag for reads outside buffers if %outside_next is not 0.
std::string report_outside(std::string_view pointer) {
    return formatted("  %any_outside = icmp ne i32 %outside_next, 0\n"
                     "  br i1 %any_outside, label %report, label %row_end\n"
                     "report:\n"
                     "  store atomic i32 1, ptr {} monotonic, align 4\n"
                     "  br label %row_end\n",
                     pointer);
}

} // namespace

std::string LoopMetadata::group(VectorLoop loop) const {
    return formatted("!{}", first_ + static_cast<int>(loop));
}
std::string LoopMetadata::access(VectorLoop loop) const {
    return ", !llvm.access.group " + group(loop);
}
std::string LoopMetadata::latch(VectorLoop loop) const {
    return formatted(", !llvm.loop !{}", first_ + kLoops + static_cast<int>(loop));
}
std::string LoopMetadata::outer_latch() const {
    return formatted(", !llvm.loop !{}", first_ + 3 * kLoops);
}
std::string LoopMetadata::definitions() const {
    std::string text = formatted("!{0} = distinct !{{!{0}, !1}}\n", first_ + 3 * kLoops);
    for (int loop = 0; loop < kLoops; ++loop)
        text += formatted("!{0} = distinct !{{}}\n"
                          "!{1} = distinct !{{!{1}, !{2}, !0}}\n"
                          "!{2} = !{{!\"llvm.loop.parallel_accesses\", !{0}}}\n",
                          first_ + loop, first_ + kLoops + loop, first_ + 2 * kLoops + loop);
    return text;
}

std::string load_fields() {
    std::string text;
    for (const Field& field : kFields) {
        text += formatted("  %{}_field = getelementptr i64, ptr %tile, i64 {}\n", field.name,
                          static_cast<int>(field.field));
        if (field.type == "i32")
            text += formatted("  %{0}_word = load i64, ptr %{0}_field\n"
                              "  %{0} = trunc i64 %{0}_word to i32\n",
                              field.name);
        else if (field.type == "float")
            text += formatted("  %{0}_word = load double, ptr %{0}_field\n"
                              "  %{0} = fptrunc double %{0}_word to float\n",
                              field.name);
        else
            text += formatted("  %{0} = load {1}, ptr %{0}_field\n", field.name, field.type);
    }
    return text;
}

std::string frame(std::string_view name, std::string_view linkage, const Values& values,
                  const LoopMetadata& metadata, std::string_view row, std::string_view after) {
    std::string text =
        formatted("define {}void @{}(ptr %args, ptr %tile) nounwind {{\nentry:\n", linkage, name);
    text += load_fields();
    text += formatted("  %nowhere = getelementptr i8, ptr %scratch, i64 {}\n",
                      values.scratch_arrays() * kArrayBytes);
    text += values.text(Block::entry) + values.sums(Block::entry);
    if (values.has_columns()) {
        text += "  br label %entry_ready\nentry_ready:\n  br label %column_loop\ncolumn_loop:\n"
                "  %j_column = phi i32 [ 0, %entry_ready ], [ %j_column_next, %column_loop ]\n";
        text += values.text(Block::column);
        text += formatted("  %j_column_next = add nuw nsw i32 %j_column, 1\n"
                          "  %columns_done = icmp eq i32 %j_column_next, %columns\n"
                          "  br i1 %columns_done, label %rows_begin, label %column_loop{}\n",
                          metadata.latch(VectorLoop::columns));
    } else {
        text += "  br label %rows_begin\n";
    }
    text += "rows_begin:\n  br label %row_loop\nrow_loop:\n"
            "  %row = phi i32 [ 0, %rows_begin ], [ %row_next, %row_end ]\n"
            "  %row64 = zext i32 %row to i64\n"
            "  %row_offset = mul i64 %row64, %stride\n";
    text += values.text(Block::row) + values.sums(Block::row);
    text += "  br label %row_ready\nrow_ready:\n";
    text += row;
    text += "  %row_next = add nuw nsw i32 %row, 1\n"
            "  %rows_done = icmp eq i32 %row_next, %rows\n"
            "  br i1 %rows_done, label %exit, label %row_loop\n"
            "exit:\n";
    text += after;
    text += "  ret void\n}\n";
    return text + metadata.definitions();
}

FunctionText versions(const FunctionRequest& request, const Body& body) {
    std::vector<int> slots, same_slots;
    FunctionText plain = body(request.name, "", true, request.first_metadata, slots);
    if (slots.empty()) return plain;
    const std::string dense_name = formatted("{}_contiguous", request.name);
    const std::string strided_name = formatted("{}_strided", request.name);
    const std::string linkage = "internal ";
    FunctionText result = body(dense_name, linkage, true, request.first_metadata, same_slots);
    result.text +=
        body(strided_name, linkage, false, request.first_metadata + kNumbersPerVersion, same_slots)
            .text;
    result.text += formatted("define void @{}(ptr %args, ptr %tile) nounwind {{\n", request.name);
    std::string all = "true";
    for (int slot : slots) {
        result.text += formatted("  %p{0} = getelementptr i64, ptr %args, i64 {0}\n"
                                 "  %s{0} = load i64, ptr %p{0}\n"
                                 "  %u{0} = icmp eq i64 %s{0}, 1\n"
                                 "  %a{0} = and i1 {1}, %u{0}\n",
                                 slot, all);
        all = formatted("%a{}", slot);
    }
    result.text += formatted("  br i1 {}, label %contiguous, label %strided\n"
                             "contiguous:\n  call void @{}(ptr %args, ptr %tile)\n  ret void\n"
                             "strided:\n  call void @{}(ptr %args, ptr %tile)\n  ret void\n}}\n",
                             all, dense_name, strided_name);
    return result;
}

Outside outside_pieces(const passes::Mod& mod, Values& values) {
    if (mod.out_of_range == ir::kNoNode) return {"", "", "  br label %row_end\n"};
    const std::string pointer = values.out_of_range_pointer();
    return {"  %outside = phi i32 [ 0, %row_ready ], [ %outside_next, %element_loop ]\n",
            formatted("  %outside_bit = zext i1 {} to i32\n"
                      "  %outside_next = or i32 %outside, %outside_bit\n",
                      values.value(mod.out_of_range, Block::element)),
            report_outside(pointer)};
}

std::string modified_score(const passes::Mod& mod, const Values& values, bool masked) {
    const std::string mask = masked ? values.value(mod.mask, Block::element) : "true";
    return formatted("  %modified = fadd float {}, {}\n"
                     "  %visible = and i1 {}, true\n",
                     values.value(mod.score, Block::element), literal(-0.0), mask);
}

} // namespace flexc::cpu
