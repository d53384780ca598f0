// Emits the function that evaluates the mask of a tile, before the tile's scores are computed.
#include "cpu/emit_frame.h"
#include "cpu/emit_function.h"
#include "cpu/emit_values.h"
#include "cpu/tile.h"
#include "support/text.h"

namespace flexc::cpu {

// Ends after the first row by which both visible and hidden elements have been seen.
FunctionText emit_mask(const passes::Mod& mod, const std::optional<passes::HiddenScores>& hidden,
                       const FunctionRequest& request) {
    return versions(request, [&](std::string_view name, std::string_view linkage, bool dense,
                                 int first_metadata, std::vector<int>& stride_slots) {
        const LoopMetadata metadata(first_metadata);
        Values values(mod, dense, 0, metadata);
        if (request.masked) values.need(mod.mask, Block::element);
        if (hidden) {
            values.need(hidden->of_any, Block::element);
            values.need(hidden->of_moderate, Block::element);
        }
        values.emit();
        auto value = [&](ir::NodeId id) { return values.value(id, Block::element); };
        std::string row = formatted(
            "  %is_moderate_p = getelementptr i64, ptr %tile, i64 {}\n"
            "  %is_moderate_word = load i64, ptr %is_moderate_p\n"
            "  %is_moderate = icmp ne i64 %is_moderate_word, 0\n"
            "  br label %element_loop\nelement_loop:\n"
            "  %j_element = phi i32 [ 0, %row_ready ], [ %j_element_next, %element_loop ]\n"
            "  %seen = phi i8 [ {}, %row_ready ], [ %seen_next, %element_loop ]\n",
            static_cast<int>(kTileIsModerate), request.masked ? 0 : static_cast<int>(kSeenMasked));
        row += values.text(Block::element);
        row += formatted("  %hidden = select i1 %is_moderate, i1 {}, i1 {}\n"
                         "  %not_hidden = xor i1 %hidden, true\n"
                         "  %shown = and i1 {}, %not_hidden\n"
                         "  %shown_bit = select i1 %shown, i8 {}, i8 0\n"
                         "  %masked_bit = select i1 {}, i8 0, i8 {}\n"
                         "  %bits = or i8 %shown_bit, %masked_bit\n"
                         "  %seen_next = or i8 %seen, %bits\n",
                         hidden ? value(hidden->of_moderate) : "false",
                         hidden ? value(hidden->of_any) : "false",
                         request.masked ? value(mod.mask) : "true", static_cast<int>(kSeenShown),
                         request.masked ? value(mod.mask) : "true", static_cast<int>(kSeenMasked));
        row += kElementStep;
        row += formatted("  br i1 %elements_done, label %row_seen, label %element_loop{}\n"
                         "row_seen:\n"
                         "  %seen_p = getelementptr i64, ptr %tile, i64 {}\n"
                         "  %seen_before = load i64, ptr %seen_p\n"
                         "  %seen_here = zext i8 %seen_next to i64\n"
                         "  %seen_all = or i64 %seen_before, %seen_here\n"
                         "  store i64 %seen_all, ptr %seen_p\n"
                         "  %all_is_seen = icmp eq i64 %seen_all, {}\n"
                         "  br i1 %all_is_seen, label %exit, label %row_end\n"
                         "row_end:\n",
                         metadata.latch(VectorLoop::elements), static_cast<int>(kTileSeen),
                         kSeenShown | kSeenMasked);
        stride_slots = values.dense_slots();
        return FunctionText{frame(name, linkage, values, metadata, row), values.scratch_arrays()};
    });
}

} // namespace flexc::cpu
