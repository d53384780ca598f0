#include "plan/few_work.h"

#include <algorithm>
#include <cmath>

#include "sm80/layout.h"

namespace flexc::plan {

namespace {

// Returns how many rows of a head of keys flexc_merge_parts joins or clears of a request.
std::int64_t merged_rows(const Sequence& sequence, int group, int parts) {
    if (!has_few_rows(sequence, group)) return 0;
    if (sequence.q_len < sequence.q_rows) return std::int64_t{sequence.q_rows} * group;
    return parts > 1 ? std::int64_t{sequence.q_len} * group : 0;
}

// Counts the blocks of flexc_merge_parts, of which each request's heads of keys have as many.
class MergingBlocks {
  public:
    void add(std::int64_t rows, int parts) {
        most_rows_ = std::max(most_rows_, rows);
        needed_ = std::max(needed_, quotient_up(rows * ::sm80::warps_of_row(parts)));
    }
    // few_rows: the most that a request's head has of few queries.
    std::int64_t of_head(std::int64_t heads, int few_rows) const {
        if (heads == 0) return 0;
        const std::int64_t spread = std::min(most_rows_, ::sm80::kMergingBlocksAtOnce / heads);
        const std::int64_t most = quotient_up(few_rows) + ::sm80::kMergingBlocksBeside / heads;
        return std::min(std::max(needed_, spread), most);
    }

  private:
    static std::int64_t quotient_up(std::int64_t warps) {
        return (warps + ::sm80::kMergingWarps - 1) / ::sm80::kMergingWarps;
    }
    std::int64_t most_rows_ = 0, needed_ = 0;
};

} // namespace

FewWork few_work(std::span<const Sequence> sequences, int parts, int group, int kv_heads,
                 std::int64_t most_queries) {
    FewWork work{.parts = parts};
    MergingBlocks merging;
    for (std::size_t i = 0; i < sequences.size(); ++i) {
        const int end = i + 1 < sequences.size() ? sequences[i + 1].first_part : parts;
        const int count = end - sequences[i].first_part;
        merging.add(merged_rows(sequences[i], group, count), count);
        work.has_others |= !has_few_rows(sequences[i], group);
    }
    const auto heads = static_cast<std::int64_t>(sequences.size()) * kv_heads;
    work.merging_blocks = merging.of_head(heads, few_rows(most_queries, group));
    return work;
}

FewWork few_work(const DenseSizes& sizes) {
    const auto batch = static_cast<int>(sizes.batch), kv_heads = static_cast<int>(sizes.kv_heads);
    const auto group = static_cast<int>(sizes.heads / sizes.kv_heads);
    Sequence entry{};
    entry.q_len = entry.q_rows = static_cast<int>(sizes.queries);
    entry.kv_len = static_cast<int>(sizes.keys);
    FewRequests all = few_of(entry, group);
    all.count *= batch;
    all.keys *= batch;
    const long long keys = shared_part_keys(all, kv_heads, [&](const PartKeys& divisions) {
        PartsByDivision parts;
        add_parts(parts, divisions, entry, group);
        for (Parts& of_all : parts.of)
            of_all.count *= batch;
        return parts;
    });
    const int count = parts_by(entry, group, keys).count;
    MergingBlocks merging;
    merging.add(merged_rows(entry, group, count), count);
    return {.parts = std::int64_t{count} * batch,
            .merging_blocks =
                merging.of_head(sizes.batch * sizes.kv_heads, few_rows(sizes.queries, group))};
}

bool has_few_rows(const DenseSizes& sizes) {
    return sizes.queries * (sizes.heads / sizes.kv_heads) <= kMostFewRows;
}

// Times are in units of the time of a key in the other kernel, which has a block for each head of
// queries, one on a multiprocessor: the next begin when these have ended. Here memory is the limit,
// which reads so many keys of all heads in that time; rows that are more than one warp's are copied
// and joined for longer.
bool are_few_faster(const DenseSizes& sizes, std::int64_t visible_keys) {
    constexpr double kMultiprocessors = kBlocksAtOnce / 3, kTile = 128, kStart = 160;
    constexpr double kKeysAtOnce = 38;
    constexpr std::int64_t kWarpRows = 16;
    const bool is_of_warp = sizes.queries * (sizes.heads / sizes.kv_heads) <= kWarpRows;
    const double entry_start = is_of_warp ? 60 : 200, launches = is_of_warp ? 700 : 1650;
    const auto batch = static_cast<double>(sizes.batch), keys = static_cast<double>(visible_keys);
    const double waves = std::ceil(batch * static_cast<double>(sizes.heads) / kMultiprocessors);
    const double other = waves * (std::ceil(keys / kTile) * kTile + kStart);
    const double entries = batch * static_cast<double>(sizes.kv_heads);
    return entries * (keys + entry_start) / kKeysAtOnce + launches < other;
}

} // namespace flexc::plan
