#include "runtime/block_mask_memory.h"

#include "support/amounts.h"

namespace flexc::runtime {

namespace {

constexpr std::int64_t kTilesInWord = 32;

// Number of tiles along one axis: of a batch entry at most, and of all entries that share a block
// mask.
struct Tiles {
    std::int64_t of_one = 0, of_all = 0;
    std::int64_t to_next = 0; // BlockMask::batch_stride for requests
};
Tiles tiles_of(Layout layout, bool is_dense, std::int64_t batch, std::int64_t length,
               std::int64_t rows, int tile) {
    const std::int64_t of_one = pieces(length, tile);
    if (is_dense) return {of_one, of_one};
    // Each request begins with a new tile, see tile_of_request in sequence_length.cuh.
    if (layout == Layout::ragged) return {of_one, pieces(rows, tile) + batch, 1};
    return {of_one, batch * of_one, of_one};
}

} // namespace

MaskCount masks_of(const plan::BlockMaskFacts& facts, const AttentionArguments& attention) {
    return {.batches = facts.is_dense() && facts.by_batch ? attention.batch : 1,
            .heads = facts.by_head ? attention.heads : 1};
}

BuiltBlockMask place_block_mask(const plan::BlockMaskFacts& facts, const plan::MaskTiling& tiling,
                                const AttentionArguments& attention, support::Arena& arena) {
    const bool is_dense = facts.is_dense(), by_keys = tiling.by_keys;
    const Tiles queries = tiles_of(facts.queries, is_dense, attention.batch, attention.q_len,
                                   attention.q_rows, tiling.query_tile);
    const Tiles keys = tiles_of(facts.keys, is_dense, attention.batch, attention.kv_len,
                                attention.kv_rows, tiling.key_tile);
    const Tiles& rows = by_keys ? keys : queries;
    const Tiles& columns = by_keys ? queries : keys;
    const MaskCount count = masks_of(facts, attention);
    const std::int64_t masks = std::int64_t{count.batches} * count.heads;
    const std::int64_t words = pieces(columns.of_one, kTilesInWord);
    const std::int64_t to_next_entry = facts.by_batch ? count.heads : 0;
    return {.mask = {.rows = arena.take<TileRow>(masks * rows.of_all),
                     .words = arena.take<TileWord>(support::product(masks, rows.of_all, words)),
                     .order = arena.take<int>(masks * rows.of_all),
                     .row_count = static_cast<int>(rows.of_all),
                     .word_count = static_cast<int>(words),
                     .batch_stride = static_cast<int>(is_dense ? to_next_entry : rows.to_next),
                     .head_stride = facts.by_head ? 1 : 0},
            .query_facts =
                arena.take<double>(support::product(masks, queries.of_all, 2 * facts.query_facts)),
            .key_facts =
                arena.take<double>(support::product(masks, keys.of_all, 2 * facts.key_facts)),
            .query_tile = tiling.query_tile,
            .key_tile = tiling.key_tile,
            .query_tiles = static_cast<int>(queries.of_all),
            .key_tiles = static_cast<int>(keys.of_all),
            .by_keys = by_keys,
            .rows_of = tiling.rows_of};
}

} // namespace flexc::runtime
