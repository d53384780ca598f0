// Which tiles of a whole score matrix the mask shows in any batch entry and head; schedules are
// made from it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "analysis/tile_class.h"
#include "flexc/distributed.h"

namespace flexc::distributed {

class VisibleMap {
  public:
    // A map in which each tile is full: there is no mask, or nothing is known of it.
    VisibleMap(std::int64_t q_len, std::int64_t kv_len);
    VisibleMap(std::int64_t q_len, std::int64_t kv_len, std::int64_t tile);

    // Adds the tiles of one more batch entry and head. The first call replaces the full map.
    void add(const std::function<analysis::TileClass(std::int64_t query_tile,
                                                     std::int64_t key_tile)>& classify);

    std::int64_t tile() const { return tile_; }
    analysis::TiledAxis queries() const { return {q_len_, 0, tile_}; }
    analysis::TiledAxis keys() const { return {kv_len_, 0, tile_}; }

    bool shows(std::int64_t query_tile, std::int64_t key_tile) const {
        return seen_[index(query_tile, key_tile)] != 0;
    }
    // Whether some tile with rows of both ranges shows something.
    bool shows(RowRange queries, RowRange keys) const;

    // Runs of the keys in `keys` that some of `queries` see, in order, to the precision of tiles.
    std::vector<RowRange> visible_keys(std::span<const RowRange> queries, RowRange keys) const;
    // The smallest range in `queries` that includes all queries which see some of `keys`.
    RowRange visible_queries(RowRange queries, RowRange keys) const;
    // Estimated number of visible elements, averaged over what was added: all of a full tile, half
    // of a partial one.
    double area(RowRange queries, RowRange keys) const;

  private:
    std::size_t index(std::int64_t query_tile, std::int64_t key_tile) const {
        return static_cast<std::size_t>(query_tile * keys().tiles() + key_tile);
    }

    std::int64_t q_len_, kv_len_, tile_;
    std::int64_t added_ = 0;
    std::vector<std::uint8_t> seen_;
    std::vector<float> share_; // of each tile's elements, summed over what was added
};

// The tile size for which an axis has at most a thousand tiles.
std::int64_t map_tile(std::int64_t q_len, std::int64_t kv_len);

} // namespace flexc::distributed
