#include "distributed/visible_map.h"

#include <algorithm>

namespace flexc::distributed {

namespace {

constexpr std::int64_t kLeastTile = 16, kMostTiles = 1024;

struct TileRange {
    std::int64_t begin = 0, end = 0;
};
TileRange tiles_of(RowRange rows, std::int64_t tile) {
    return {rows.begin / tile, (rows.end + tile - 1) / tile};
}

RowRange overlap(RowRange a, RowRange b) {
    return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

} // namespace

std::int64_t map_tile(std::int64_t q_len, std::int64_t kv_len) {
    const std::int64_t longest = std::max(q_len, kv_len);
    const std::int64_t least = (longest + kMostTiles - 1) / kMostTiles;
    return (least + kLeastTile - 1) / kLeastTile * kLeastTile;
}

VisibleMap::VisibleMap(std::int64_t q_len, std::int64_t kv_len)
    : VisibleMap(q_len, kv_len, map_tile(q_len, kv_len)) {}

VisibleMap::VisibleMap(std::int64_t q_len, std::int64_t kv_len, std::int64_t tile)
    : q_len_(q_len), kv_len_(kv_len), tile_(tile),
      seen_(static_cast<std::size_t>(queries().tiles() * keys().tiles()), 1),
      share_(seen_.size(), 1.0f) {}

void VisibleMap::add(
    const std::function<analysis::TileClass(std::int64_t, std::int64_t)>& classify) {
    using analysis::TileClass;
    if (added_++ == 0) {
        std::ranges::fill(seen_, std::uint8_t{0});
        std::ranges::fill(share_, 0.0f);
    }
    for (std::int64_t q = 0; q < queries().tiles(); ++q)
        for (std::int64_t kv = 0; kv < keys().tiles(); ++kv) {
            const TileClass tile = classify(q, kv);
            if (tile == TileClass::empty) continue;
            seen_[index(q, kv)] = 1;
            share_[index(q, kv)] += tile == TileClass::full ? 1.0f : 0.5f;
        }
}

bool VisibleMap::shows(RowRange queries, RowRange keys) const {
    if (queries.count() == 0 || keys.count() == 0) return false;
    const TileRange rows = tiles_of(queries, tile_), columns = tiles_of(keys, tile_);
    for (std::int64_t q = rows.begin; q < rows.end; ++q)
        for (std::int64_t kv = columns.begin; kv < columns.end; ++kv)
            if (shows(q, kv)) return true;
    return false;
}

std::vector<RowRange> VisibleMap::visible_keys(std::span<const RowRange> queries,
                                               RowRange keys) const {
    std::vector<RowRange> runs;
    const TileRange columns = tiles_of(keys, tile_);
    for (std::int64_t kv = columns.begin; kv < columns.end; ++kv) {
        const RowRange own = overlap({kv * tile_, (kv + 1) * tile_}, keys);
        const bool is_seen =
            std::ranges::any_of(queries, [&](const RowRange& range) { return shows(range, own); });
        if (!is_seen || own.count() <= 0) continue;
        if (!runs.empty() && runs.back().end == own.begin)
            runs.back().end = own.end;
        else
            runs.push_back(own);
    }
    return runs;
}

RowRange VisibleMap::visible_queries(RowRange queries, RowRange keys) const {
    RowRange seen{queries.end, queries.end};
    const TileRange rows = tiles_of(queries, tile_);
    for (std::int64_t q = rows.begin; q < rows.end; ++q) {
        const RowRange own = overlap({q * tile_, (q + 1) * tile_}, queries);
        if (!shows(own, keys)) continue;
        if (seen.count() == 0) seen.begin = own.begin;
        seen.end = own.end;
    }
    return seen;
}

double VisibleMap::area(RowRange queries, RowRange keys) const {
    double area = 0;
    const TileRange rows = tiles_of(queries, tile_), columns = tiles_of(keys, tile_);
    for (std::int64_t q = rows.begin; q < rows.end; ++q) {
        const RowRange own = overlap({q * tile_, (q + 1) * tile_}, queries);
        for (std::int64_t kv = columns.begin; kv < columns.end; ++kv) {
            const RowRange across = overlap({kv * tile_, (kv + 1) * tile_}, keys);
            area += double{share_[index(q, kv)]} * static_cast<double>(own.count()) *
                    static_cast<double>(across.count());
        }
    }
    return added_ == 0 ? area : area / static_cast<double>(added_);
}

} // namespace flexc::distributed
