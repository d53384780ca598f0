#include "plan/few_work.h"

#include <algorithm>

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

} // namespace flexc::plan
