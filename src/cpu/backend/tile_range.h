// Which part of the score matrix a mask shows: by its band, its block mask, and by evaluating the
// mask of tiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "cpu/backend/attention.h"
#include "cpu/backend/shared_mask_results.h"

namespace flexc::cpu {

struct Range {
    std::int64_t begin = 0, end = 0;
    bool empty() const { return begin >= end; }
};

// A distance beyond any row of a tensor.
inline constexpr std::int64_t kFar = std::int64_t{1} << 40;

// low <= kv - q <= high for every visible pair, in rows of the tensors: offsets are taken out. With
// clamps, query q of least_query ... most_query sees the keys from first_key(q) to last_key(q):
// neither falls from one query to the next.
struct VisibleBand {
    std::int64_t low = -kFar, high = kFar;
    std::int64_t first_least = -kFar, first_most = kFar, last_least = -kFar, last_most = kFar;
    std::int64_t least_query = -kFar, most_query = kFar;
    bool exact = false;

    std::int64_t first_key(std::int64_t q) const {
        return std::min(first_most, std::max(first_least, q + low));
    }
    std::int64_t last_key(std::int64_t q) const {
        return std::min(last_most, std::max(last_least, q + high));
    }
    Range columns_of(Range rows, std::int64_t columns) const {
        const std::int64_t first = std::max(rows.begin, least_query);
        const std::int64_t last = std::min(rows.end - 1, most_query);
        if (first > last) return {};
        return {std::max<std::int64_t>(0, first_key(first)), std::min(columns, last_key(last) + 1)};
    }
    Range rows_of(Range columns, std::int64_t rows) const {
        const std::int64_t first = columns.begin, last = columns.end - 1;
        const std::int64_t from = first <= last_least ? -kFar
                                  : first > last_most ? kFar
                                                      : first - high;
        const std::int64_t to = last < first_least ? -kFar : last >= first_most ? kFar : last - low;
        return {std::max({std::int64_t{0}, from, least_query}),
                std::min({rows, to + 1, most_query + 1})};
    }
    bool covers(Range rows, Range columns) const {
        return exact && rows.begin >= least_query && rows.end - 1 <= most_query &&
               columns.begin >= first_key(rows.end - 1) && columns.end - 1 <= last_key(rows.begin);
    }
};

// The caller's block mask of one (b, h); without one, anything may be visible.
class VisibleTiles {
  public:
    VisibleTiles(const BlockMask& mask, std::int64_t b, std::int64_t h)
        : words_(mask.words), word_count_(mask.word_count) {
        if (words_ != nullptr)
            words_ += (b * mask.batch_stride + h * mask.head_stride) * mask.row_count * word_count_;
    }

    bool shows(Range rows, Range columns) const {
        return words_ == nullptr ||
               any(rows, columns, [](TileWord word, unsigned bit) { return word.visible & bit; });
    }
    bool covers(Range rows, Range columns) const {
        return words_ != nullptr &&
               !any(rows, columns, [](TileWord word, unsigned bit) { return ~word.full & bit; });
    }

  private:
    template <typename Test> bool any(Range rows, Range columns, Test test) const {
        const std::int64_t last_row = (rows.end - 1) / kMaskQueryTile;
        const std::int64_t last_column = (columns.end - 1) / kMaskKeyTile;
        for (std::int64_t row = rows.begin / kMaskQueryTile; row <= last_row; ++row)
            for (std::int64_t column = columns.begin / kMaskKeyTile; column <= last_column;
                 ++column)
                if (test(words_[row * word_count_ + column / 32], 1u << column % 32)) return true;
        return false;
    }

    const TileWord* words_;
    std::int64_t word_count_;
};

// The columns of a tile that have to be computed, and whether the mask leaves all of them whole.
struct VisibleColumns {
    Range columns;
    bool is_full = false;
};

// Sets tile.seen: tests the mask by intervals, and evaluates it at each element if these decide
// nothing. For few elements the interval test is skipped.
inline void evaluate_mask(const TileFunctions& functions, const Launch& launch, Tile& tile) {
    constexpr std::int64_t kShortRows = 4;
    if (functions.intervals != nullptr && tile.rows > kShortRows)
        functions.intervals(launch.words, &tile);
    const bool hides_all = tile.seen == kSeenMasked;
    if (tile.seen != 0 && (hides_all || !launch.shape->hides_scores)) return;
    tile.seen = 0;
    functions.mask(launch.words, &tile);
}

// Returns the visible columns of a tile inside the band. Parts of kMaskKeyTile columns at either
// end in which nothing is visible are removed, by the block mask or by evaluating the mask, for
// which move(tile, columns) positions `tile`. The tile has b, h, h_kv, its rows and whether its
// scores are moderate.
template <typename Move>
VisibleColumns find_visible_columns(const TileFunctions& functions, const Launch& launch,
                                    const VisibleBand& band, const VisibleTiles& tiles,
                                    const SharedMaskResults& mask_results, Tile& tile, Range rows,
                                    Range columns, const Move& move) {
    VisibleColumns visible{{columns.end, columns.end}, true};
    for (std::int64_t first = columns.begin, next = 0; first < columns.end; first = next) {
        next = std::min((first / kMaskKeyTile + 1) * kMaskKeyTile, columns.end);
        const Range part{first, next};
        if (!tiles.shows(rows, part)) continue;
        bool is_full = band.covers(rows, part) || tiles.covers(rows, part);
        if (functions.mask != nullptr && (!is_full || launch.shape->hides_scores)) {
            tile.seen = mask_results.find(rows.begin, first);
            if (tile.seen == 0) {
                move(tile, part);
                evaluate_mask(functions, launch, tile);
                mask_results.keep(rows.begin, first, tile.seen);
            }
            if ((tile.seen & kSeenShown) == 0) continue;
            is_full = is_full || (tile.seen & kSeenMasked) == 0;
        }
        const bool is_first = visible.columns.empty();
        if (is_first) visible.columns.begin = first;
        visible.is_full = visible.is_full && is_full && (is_first || visible.columns.end == first);
        visible.columns.end = next;
    }
    return visible;
}
inline VisibleColumns find_visible_columns(const TileFunctions& functions, const Launch& launch,
                                           const VisibleBand& band, const VisibleTiles& tiles,
                                           const SharedMaskResults& mask_results, Tile& tile,
                                           Range rows, Range columns) {
    return find_visible_columns(functions, launch, band, tiles, mask_results, tile, rows, columns,
                                [&](Tile& moved, Range part) {
                                    moved.kv_begin = part.begin + launch.arguments->kv_offset;
                                    moved.kv_row = part.begin + launch.kv_row;
                                    moved.columns = part.end - part.begin;
                                });
}

inline bool is_moderate(double scale) { return std::abs(scale) < kModerateScale; }

// Returns the band of one head. `tile` has b, h and h_kv; words: the module's arguments.
inline VisibleBand visible_band(const TileFunctions& functions, const Launch& launch,
                                const std::uint64_t* words, Tile tile) {
    VisibleBand band;
    if (!launch.shape->has_band || functions.band == nullptr) return band;
    tile.rows = tile.columns = 1;
    tile.first_least = tile.last_least = tile.least_query = -kFar;
    tile.first_most = tile.last_most = tile.most_query = kFar;
    functions.band(words, &tile);
    const auto shifted = [](std::int64_t bound, std::int64_t shift) {
        return std::clamp(std::clamp(bound, -kFar, kFar) + shift, -kFar, kFar);
    };
    const std::int64_t q_offset = launch.arguments->q_offset;
    const std::int64_t kv_offset = launch.arguments->kv_offset;
    return {.low = shifted(tile.band_low, q_offset - kv_offset),
            .high = shifted(tile.band_high, q_offset - kv_offset),
            .first_least = shifted(tile.first_least, -kv_offset),
            .first_most = shifted(tile.first_most, -kv_offset),
            .last_least = shifted(tile.last_least, -kv_offset),
            .last_most = shifted(tile.last_most, -kv_offset),
            .least_query = shifted(tile.least_query, -q_offset),
            .most_query = shifted(tile.most_query, -q_offset),
            .exact = launch.shape->band_is_exact};
}

} // namespace flexc::cpu
