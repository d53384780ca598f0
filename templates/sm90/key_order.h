// The order in which a tile of queries visits a range of tiles of keys, alike for all threads,
// which count `next` from the last tile down to the first. Included by device and host code.
#pragma once

#include "common/host_device.h"

namespace sm90 {

// From the last tile to the first.
struct Descending {
    FLEXC_SHARED Descending(int, int) {}
    // Return the tile that is visited at this count, and the one at the count below.
    FLEXC_SHARED int tile(int next) const { return next; }
    FLEXC_SHARED int after(int next) const { return next - 1; }
    // Moves on to the next count.
    FLEXC_SHARED void advance() {}
};

// The last tile, then those that are one, two and three quarters of the range before it; then the
// last but one and those before that. So others are visited between neighbours, which take long to
// copy one after the other.
class Interleaved {
    static constexpr int kRound = 4;

  public:
    FLEXC_SHARED Interleaved(int begin, int end)
        : begin_(begin), step_((end - begin + kRound - 1) / kRound), first_(end - 1),
          tile_(end - 1) {}
    FLEXC_SHARED int tile(int) const { return tile_; }
    FLEXC_SHARED int after(int) const {
        return tile_ - step_ >= begin_ ? tile_ - step_ : first_ - 1;
    }
    FLEXC_SHARED void advance() {
        tile_ -= step_;
        if (tile_ < begin_) tile_ = --first_;
    }

  private:
    int begin_, step_, first_, tile_; // first_: where this round began
};

} // namespace sm90
