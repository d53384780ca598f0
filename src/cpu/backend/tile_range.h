// Which part of the score matrix a mask's band lets through.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/backend/attention.h"

namespace flexc::cpu {

struct Range {
    std::int64_t begin = 0, end = 0;
    bool empty() const { return begin >= end; }
};

// low <= kv - q <= high for every visible pair, in rows of the tensors: offsets are taken out.
struct VisibleBand {
    std::int64_t low, high;
    bool exact;

    Range columns_of(Range rows, std::int64_t columns) const {
        return {std::max<std::int64_t>(0, rows.begin + low),
                std::min(columns, rows.end + high)}; // last row + high, and one past it
    }
    Range rows_of(Range columns, std::int64_t rows) const {
        return {std::max<std::int64_t>(0, columns.begin - high), std::min(rows, columns.end - low)};
    }
    bool covers(Range rows, Range columns) const {
        return exact && columns.begin - (rows.end - 1) >= low &&
               columns.end - 1 - rows.begin <= high;
    }
};

// What the caller's map says of one (b, h); without a map, that anything may be visible.
class VisibleTiles {
  public:
    VisibleTiles(const TileMap& map, std::int64_t b, std::int64_t h)
        : words_(map.words), word_count_(map.word_count) {
        if (words_ != nullptr)
            words_ += (b * map.batch_stride + h * map.head_stride) * map.row_count * word_count_;
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
        const std::int64_t last_row = (rows.end - 1) / kMapQueryTile;
        const std::int64_t last_column = (columns.end - 1) / kMapKeyTile;
        for (std::int64_t row = rows.begin / kMapQueryTile; row <= last_row; ++row)
            for (std::int64_t column = columns.begin / kMapKeyTile; column <= last_column; ++column)
                if (test(words_[row * word_count_ + column / 32], 1u << column % 32)) return true;
        return false;
    }

    const TileWord* words_;
    std::int64_t word_count_;
};

// Of one head. `tile` carries b, h and h_kv; arguments are the module's words.
inline VisibleBand visible_band(const TileFunctions& functions, const Launch& launch,
                                const std::uint64_t* words, Tile tile) {
    constexpr std::int64_t kFar = std::int64_t{1} << 40;
    VisibleBand band{-kFar, kFar, false};
    if (!launch.shape->has_band || functions.band == nullptr) return band;
    tile.rows = tile.columns = 1;
    functions.band(words, &tile);
    const std::int64_t shift = launch.arguments->q_offset - launch.arguments->kv_offset;
    band.low = std::clamp(std::clamp(tile.band_low, -kFar, kFar) + shift, -kFar, kFar);
    band.high = std::clamp(std::clamp(tile.band_high, -kFar, kFar) + shift, -kFar, kFar);
    band.exact = launch.shape->band_is_exact;
    return band;
}

} // namespace flexc::cpu
