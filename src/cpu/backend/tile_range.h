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
