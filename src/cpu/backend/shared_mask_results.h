// What the mask shows of each tile, shared by heads for which it is the same: the first head that
// needs a tile's result evaluates the mask for all. Tiles are kMaskQueryTile by kMaskKeyTile.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/backend_table.h"
#include "support/amounts.h"
#include "support/arena.h"

namespace flexc::cpu {

// The results for one batch entry or request.
class SharedMaskResults {
  public:
    // With more tiles than this, nothing is shared.
    static constexpr std::int64_t kMost = std::int64_t{1} << 24;

    SharedMaskResults() = default; // shares nothing
    // seen: zeros, one for each tile.
    SharedMaskResults(std::uint8_t* seen, std::int64_t keys)
        : seen_(seen), key_tiles_(tiles(keys)) {}

    static std::int64_t count(std::int64_t queries, std::int64_t keys) {
        return (queries + kMaskQueryTile - 1) / kMaskQueryTile * tiles(keys);
    }

    // The result for the tile of this element: bits of Seen, 0 if not yet computed.
    std::int64_t find(std::int64_t query, std::int64_t key) const {
        return seen_ == nullptr ? 0 : seen_[place(query, key)];
    }
    void keep(std::int64_t query, std::int64_t key, std::int64_t seen) const {
        if (seen_ != nullptr) seen_[place(query, key)] = static_cast<std::uint8_t>(seen);
    }

  private:
    static std::int64_t tiles(std::int64_t keys) {
        return (keys + kMaskKeyTile - 1) / kMaskKeyTile;
    }
    std::int64_t place(std::int64_t query, std::int64_t key) const {
        return query / kMaskQueryTile * key_tiles_ + key / kMaskKeyTile;
    }

    std::uint8_t* seen_ = nullptr;
    std::int64_t key_tiles_ = 0;
};

inline bool shares_mask_results(const Launch& launch) {
    return launch.shape->shares_mask_results && launch.arguments->heads > 1;
}

// The results for all batch entries of a dense launch.
class MaskResultsOfEntries {
  public:
    MaskResultsOfEntries() = default; // shares nothing
    MaskResultsOfEntries(const Launch& launch, support::Arena& arena) {
        if (!shares_mask_results(launch)) return;
        keys_ = launch.arguments->kv_len;
        of_entry_ = SharedMaskResults::count(launch.arguments->q_len, keys_);
        count_ = support::product(std::int64_t{launch.arguments->batch}, of_entry_);
        // Launches that are smaller never take more.
        seen_ = arena.take<std::uint8_t>(std::min(count_, SharedMaskResults::kMost));
        if (count_ > SharedMaskResults::kMost) seen_ = nullptr;
    }

    SharedMaskResults of(std::int64_t b) const {
        return seen_ == nullptr ? SharedMaskResults()
                                : SharedMaskResults(seen_ + b * of_entry_, keys_);
    }
    // Clears the results; false if nothing is shared.
    bool begin() const {
        if (seen_ != nullptr) std::fill_n(seen_, count_, std::uint8_t{0});
        return seen_ != nullptr;
    }

  private:
    std::uint8_t* seen_ = nullptr;
    std::int64_t keys_ = 0, of_entry_ = 0, count_ = 0;
};

} // namespace flexc::cpu
