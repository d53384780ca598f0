// Packed tiles of keys or values that several pieces of work read: the first one that needs a tile
// packs it for all.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "cpu/backend/tensors.h"
#include "support/arena.h"

namespace flexc::cpu {

struct PackedTile {
    const float* data;
    Magnitude magnitude;
};

class PackedTiles {
  public:
    PackedTiles() = default; // shares nothing
    // floats: the size of a tile.
    PackedTiles(support::Arena& arena, std::int64_t count, std::int64_t floats)
        : states_(arena.take<State>(count)), tiles_(arena.take<float>(count * floats)),
          count_(count), floats_(floats) {}

    std::int64_t count() const { return count_; }
    // Forgets all tiles. No other thread may be using them.
    void clear() const {
        for (std::int64_t i = 0; i < count_; ++i)
            std::construct_at(states_ + i, std::uint8_t{0});
    }

    // Returns the tile of this number, which pack(to) packs if nobody has. Without a number below
    // count(), or while another thread packs the tile, this one packs its own copy to `own`:
    // waiting would take as long.
    template <typename Pack>
    PackedTile find(std::int64_t number, float* own, const Pack& pack) const {
        if (number < 0 || number >= count_) return {own, pack(own)};
        State& state = states_[number];
        float* const shared = tiles_ + number * floats_;
        std::uint8_t seen = state.load(std::memory_order_acquire);
        if (seen == 0 && state.compare_exchange_strong(seen, kTaken, std::memory_order_acquire)) {
            const Magnitude magnitude = pack(shared);
            state.store(static_cast<std::uint8_t>(kPacked | (magnitude.is_finite ? kFinite : 0) |
                                                  (magnitude.is_moderate ? kModerate : 0)),
                        std::memory_order_release);
            return {shared, magnitude};
        }
        if ((seen & kPacked) == 0) return {own, pack(own)};
        return {shared, {(seen & kFinite) != 0, (seen & kModerate) != 0}};
    }

  private:
    using State = std::atomic<std::uint8_t>; // bits of these, 0 if nobody has begun
    static constexpr std::uint8_t kTaken = 1, kPacked = 2, kFinite = 4, kModerate = 8;

    State* states_ = nullptr;
    float* tiles_ = nullptr;
    std::int64_t count_ = 0, floats_ = 0;
};

} // namespace flexc::cpu
