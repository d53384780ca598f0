// Packed tiles of keys and values that pieces of a request's work share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/backend/attention.h"
#include "cpu/backend/packed_tiles.h"
#include "cpu/backend/request_block.h"
#include "support/amounts.h"

namespace flexc::cpu::requests {

class SharedTiles {
  public:
    SharedTiles(const Launch& launch, support::Arena& arena)
        : in_(*launch.arguments), all_(*launch.sequences) {
        // Otherwise no two pieces have the same keys.
        if (std::int64_t{in_.q_len} * group() <= kBlockRows) return;
        // Beyond this memory, each piece packs its own.
        constexpr std::int64_t kMostBytes = std::int64_t{1} << 26;
        const KernelShape& shape = *launch.shape;
        const std::int64_t floats = kKeyTile * (shape.head_dim + shape.head_dim_v);
        const std::int64_t count =
            std::min(support::product(std::int64_t{in_.batch}, tiles_of(in_.kv_len)),
                     kMostBytes / (floats * std::int64_t{sizeof(float)}));
        keys_ = PackedTiles(arena, count, kKeyTile * shape.head_dim);
        values_ = PackedTiles(arena, count, kKeyTile * shape.head_dim_v);
        first_ = arena.take<std::int64_t>(in_.batch);
    }

    // Whether two pieces may have the same keys.
    bool any() const { return first_ != nullptr; }

    // Places the tiles of requests whose keys several pieces read, one after another, as far as
    // there is room.
    void place() const {
        if (first_ == nullptr) return;
        // At first, how many pieces read the first key of each request.
        std::fill_n(first_, all_.count, 0);
        for (std::int64_t i = 0; i < all_.work_count; ++i)
            if (all_.work[i].key == 0 && all_.work[i].head < group())
                ++first_[all_.work[i].request];
        std::int64_t used = 0;
        for (int request = 0; request < all_.count; ++request) {
            const bool is_shared = first_[request] > 1;
            first_[request] = is_shared ? used : kNoRoom;
            if (is_shared) used += tiles_of(all_.of(request).kv_len);
        }
        keys_.clear();
        values_.clear();
    }

    // The number of a tile, which may be beyond those for which there is room.
    std::int64_t number(int request, int kv_head, std::int64_t key) const {
        if (first_ == nullptr || first_[request] == kNoRoom) return kNoRoom;
        const std::int64_t of_head = tiles_of(all_.of(request).kv_len) / in_.kv_heads;
        return first_[request] + kv_head * of_head + key / kKeyTile;
    }
    const PackedTiles& keys() const { return keys_; }
    const PackedTiles& values() const { return values_; }

  private:
    // Of all heads' keys.
    std::int64_t tiles_of(std::int64_t keys) const {
        return in_.kv_heads * ((keys + kKeyTile - 1) / kKeyTile);
    }
    int group() const { return in_.heads / in_.kv_heads; }

    static constexpr std::int64_t kNoRoom = -1;

    const AttentionArguments& in_;
    const SequenceArguments& all_;
    PackedTiles keys_, values_;
    std::int64_t* first_ = nullptr; // of each request, or kNoRoom
};

} // namespace flexc::cpu::requests
