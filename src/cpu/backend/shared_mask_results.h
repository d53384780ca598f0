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

// The results for all requests of a launch, whose lengths differ.
class MaskResultsOfRequests {
  public:
    MaskResultsOfRequests(const Launch& launch, support::Arena& arena)
        : sequences_(*launch.sequences) {
        if (!shares_mask_results(launch)) return;
        const AttentionArguments& in = *launch.arguments;
        room_ = std::min(
            support::product(std::int64_t{in.batch}, SharedMaskResults::count(in.q_len, in.kv_len)),
            SharedMaskResults::kMost);
        seen_ = arena.take<std::uint8_t>(room_);
        first_ = arena.take<std::int64_t>(in.batch);
    }

    bool any() const { return seen_ != nullptr; }
    // Places requests one after another, as far as there is room, and clears their results.
    void place() const {
        if (!any()) return;
        std::int64_t used = 0;
        for (int request = 0; request < sequences_.count; ++request) {
            const Sequence& sequence = sequences_.of(request);
            const std::int64_t count = SharedMaskResults::count(sequence.q_len, sequence.kv_len);
            first_[request] = count <= room_ - used ? used : kNoRoom;
            if (first_[request] != kNoRoom) used += count;
        }
        std::fill_n(seen_, used, std::uint8_t{0});
    }
    SharedMaskResults of(int request) const {
        if (!any() || first_[request] == kNoRoom) return {};
        return {seen_ + first_[request], sequences_.of(request).kv_len};
    }

  private:
    static constexpr std::int64_t kNoRoom = -1;

    const SequenceArguments& sequences_;
    std::uint8_t* seen_ = nullptr;
    std::int64_t* first_ = nullptr; // of each request, or kNoRoom
    std::int64_t room_ = 0;
};

} // namespace flexc::cpu
