// A tile of a request's keys and values, and products with it. What these need is loaded once.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/backend/request_keys.h"
#include "cpu/backend/request_queries.h"
#include "cpu/backend/request_tiles.h"

namespace flexc::cpu::requests {

// A few rows of queries, padded, and the keys of a tile that they see.
struct FewRows {
    Block* block;
    int rows;
    Range columns;
};

class KeyTile {
  public:
    // tiles: those that the pieces of all requests share.
    KeyTile(const Launch& launch, int request, const SharedTiles& tiles, parts::Unit unit,
            Scratch& scratch)
        : shape_(*launch.shape), in_(*launch.arguments), keys_of_(launch, request),
          queries_of_(launch, request, unit != parts::Unit::none), tiles_(tiles), request_(request),
          unit_(unit), scratch_(scratch) {}

    const Range& keys() const { return keys_; }
    // Forgets what is loaded, if these are other keys.
    void move_to(Range keys);
    void move_to_head(int kv_head);

    bool keys_are_moderate(); // all keys of the tile
    // The rows that a mod reads buffers of keys by: rows[key % kKeyTile].
    const std::int64_t* key_rows();

    // Whether products of so many rows can read keys and values from memory without copying them.
    bool may_be_skinny(std::int64_t rows) const;
    FewRowsBy few_rows_by(std::int64_t rows) const;
    // Whether rows of several heads that need not copy keys should be multiplied together, as
    // each head's keys lie between those of others.
    bool joins_heads() const;
    // block.scores[rows][kKeyTile] = queries * keys, by rows in memory, for all of these.
    void multiply_in_memory(std::span<const FewRows> all);
    // block.output[rows][] (+)= block.scores * values, likewise.
    void add_values_in_memory(std::span<const FewRows> all);

    // The same with `width` keys of the copied tile, from its column `first` on.
    void multiply(Block& block, int rows, std::int64_t first, int width);
    void add_values(const Block& block, int rows, std::int64_t first, int width);

  private:
    ReadingOrder order(int dim) const {
        return reading_order(dim, dim * bytes_of(shape_.kv_dtype));
    }
    // Calls visit(few rows, some of their columns, rows ahead to prefetch) with the tile at their
    // head: those of one head after another, or in turn.
    template <typename Visit>
    void visit_few_rows(std::span<const FewRows> all, const ReadingOrder& order,
                        const Visit& visit);
    // Whether weights of a few rows are rounded to bf16 for their product with values.
    bool rounds_weights(int rows) const {
        return shape_.dtype == DType::bf16 && shape_.kv_dtype == DType::bf16 &&
               parts::may_round_weights(in_) && has_bf16_weights(rows, shape_.head_dim_v);
    }
    void add_wide_values(const Block& block, int rows, std::int64_t first, int width);
    bool has_parts() const { return unit_ != parts::Unit::none; }
    parts::TileProduct product(int dim, int rows, std::int64_t first, int width) const {
        return {unit_, shape_.kv_dtype, dim, rows, width, first, kKeyTile};
    }
    void load_keys();
    void load_values();
    std::int64_t number() const { return tiles_.number(request_, kv_head_, keys_.begin); }
    RowList list_rows(Range keys, const TensorArgument& tensor) const {
        return keys_of_.list_rows(keys, kv_head_, tensor, scratch_.offsets);
    }

    const KernelShape& shape_;
    const AttentionArguments& in_;
    const Keys keys_of_;
    const Queries queries_of_;
    const SharedTiles& tiles_;
    int request_;
    parts::Unit unit_; // for products of many rows
    Scratch& scratch_;
    Range keys_;
    int kv_head_ = -1;
    bool has_keys_ = false, has_values_ = false, has_key_rows_ = false;
    PackedTile packed_keys_{}, packed_values_{};
};

} // namespace flexc::cpu::requests
