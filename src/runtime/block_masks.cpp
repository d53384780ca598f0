#include "runtime/block_masks.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "runtime/alignment.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32; // of block_mask.cu

// Whether requests can have the rows of this tiling (few or many).
bool has_rows(const plan::MaskTiling& tiling, const AttentionArguments& attention) {
    const int most_few = kMostFewRows / (attention.heads / attention.kv_heads);
    return attention.q_len > (tiling.rows_of == RowsOf::many  ? most_few
                              : tiling.rows_of == RowsOf::few ? 0
                                                              : -1);
}

} // namespace

Result<BlockMasks> BlockMasks::load(cuda::Module module, const plan::BlockMaskFacts& kept,
                                    bool starts_early) {
    auto facts = module.function("flexc_block_mask_facts", 0);
    if (!facts) return facts.error();
    auto tiles = module.function("flexc_block_mask_tiles", 0);
    if (!tiles) return tiles.error();
    auto order = module.function("flexc_block_mask_order", 0);
    if (!order) return order.error();
    return BlockMasks(std::move(module), kept, *facts, *tiles, *order, starts_early);
}

void BlockMasks::add(const plan::MaskTiling& tiling, Pass pass) {
    auto found = std::ranges::find(masks_, tiling, &Mask::tiling);
    if (found == masks_.end()) found = masks_.insert(masks_.end(), {.tiling = tiling});
    (pass == Pass::forward ? found->of_forward : found->of_backward) = true;
}

BlockMasks::Placed BlockMasks::place(const AttentionArguments& attention, std::byte* memory) const {
    Placed result;
    const MaskCount count = masks_of(kept_, attention);
    result.arguments.masks_of_batches = count.batches;
    result.arguments.masks_of_heads = count.heads;
    support::Arena arena(memory, kAlignment);
    for (std::size_t i = 0; i < masks_.size(); ++i)
        result.arguments.masks[i] = place_block_mask(kept_, masks_[i].tiling, attention, arena);
    result.bytes = arena.used();
    return result;
}

std::size_t BlockMasks::bytes(const AttentionArguments& attention) const {
    return place(attention, nullptr).bytes;
}

BlockMask BlockMasks::of(const plan::MaskTiling& tiling, const AttentionArguments& attention,
                         void* memory) const {
    const auto index = std::ranges::find(masks_, tiling, &Mask::tiling) - masks_.begin();
    return place(attention, static_cast<std::byte*>(memory)).arguments.masks[index].mask;
}

Result<void> BlockMasks::build(const AttentionArguments& attention, const void* words, void* memory,
                               std::optional<Pass> pass, void* stream) const {
    if (attention.batch == 0) return {}; // there are no requests
    const Placed placed = place(attention, static_cast<std::byte*>(memory));
    BlockMaskArguments of_masks = placed.arguments;
    const std::int64_t masks = std::int64_t{of_masks.masks_of_batches} * of_masks.masks_of_heads;
    unsigned count = 0;
    std::int64_t facts = 0, tiles = 0, order = 0; // blocks
    for (std::size_t i = 0; i < masks_.size(); ++i) {
        if (!masks_[i].is_of(pass) || !has_rows(masks_[i].tiling, attention)) continue;
        const BuiltBlockMask& one = of_masks.masks[count++] = placed.arguments.masks[i];
        const std::int64_t rows = one.mask.row_count;
        facts = std::max(facts,
                         pieces(masks * (std::int64_t{one.query_tiles} + one.key_tiles), kWarps));
        tiles = std::max(tiles, support::product(masks, rows, pieces(one.mask.word_count, kWarps)));
        // Rows with few queries need no order: they are visited by parts of keys.
        if (masks_[i].tiling.rows_of != RowsOf::few)
            order = std::max(order, masks * pieces(rows, kThreads));
    }
    if (std::max({facts, tiles, order}) > INT32_MAX)
        return Error{
            ErrorCode::limit,
            formatted("the block masks of {} heads are too large for one launch: split the "
                      "batch",
                      masks)};
    const std::array<void*, 3> arguments = {const_cast<AttentionArguments*>(&attention),
                                            const_cast<void*>(words), &of_masks};
    struct Launch {
        const cuda::Function* function;
        std::int64_t blocks;
        bool starts_early;
    };
    for (const Launch& one : {Launch{&facts_, facts, false},
                              {&tiles_, tiles, starts_early_},
                              {&order_, order, starts_early_}}) {
        if (one.blocks == 0) continue; // no request has queries, or keys
        if (auto done =
                one.function->launch({.x = static_cast<unsigned>(one.blocks), .y = count},
                                     {.x = kThreads}, 0, stream, arguments, one.starts_early);
            !done)
            return done;
    }
    return {};
}

} // namespace flexc::runtime
