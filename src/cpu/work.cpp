#include "cpu/work.h"

namespace flexc::cpu {

namespace {

// The pieces of one request: how many heads and queries a piece of so many blocks has, or of so
// many groups if groups have few rows.
struct Piece {
    int heads, queries;
};
Piece piece_of(int queries, int group, int blocks, int groups) {
    if (queries <= kFewRows / group) return {group * groups, queries};
    if (queries <= kBlockRows) return {std::min(group, blocks * heads_in_block(queries)), queries};
    const int heads = std::min(group, blocks);
    return {heads, kBlockRows * (blocks / heads)};
}

class Lister {
  public:
    // enough: the number of pieces to aim for. request: the first sequence.
    Lister(std::span<const Sequence> sequences, int heads, int kv_heads, int enough, int groups,
           int request = 0, int part = 0)
        : sequences_(sequences), heads_(heads), group_(heads / kv_heads), enough_(enough),
          groups_(groups), request_(request), part_count_(part) {}

    int part_count() const { return part_count_; }

    std::int64_t count(int blocks) const {
        std::int64_t pieces = 0;
        for (const Sequence& sequence : sequences_) {
            if (sequence.q_len == 0) continue;
            const Piece piece = piece_of(sequence.q_len, group_, blocks, groups_);
            const std::int64_t by_query = (sequence.q_len + piece.queries - 1) / piece.queries;
            visit_heads(piece, [&](int, int) { pieces += by_query; });
        }
        return pieces;
    }

    // Adds to `work`.
    void list(std::vector<SequenceWork>& work) {
        while (groups_ > 1 && most_pieces() < enough_)
            groups_ /= 2;
        const std::int64_t pieces = count(1);
        const int blocks = pieces >= std::int64_t{kWorkBlocks} * enough_ ? kWorkBlocks : 1;
        // For all keys together, so that parts have similar lengths.
        std::int64_t keys = 0;
        if (blocks == 1 && pieces < enough_)
            for (const Sequence& sequence : sequences_)
                if (sequence.q_len > 0 && may_split(sequence.kv_len))
                    keys += sequence.kv_len * count_of(sequence);
        const std::int64_t keys_each =
            keys == 0 ? INT32_MAX
                      : std::max<std::int64_t>((keys / enough_ + 255) / 256 * 256, kLeastKeys);
        for (std::size_t i = 0; i < sequences_.size(); ++i)
            add(work, static_cast<int>(i), blocks, keys_each);
    }

  private:
    std::int64_t count_of(const Sequence& sequence) const {
        return Lister({&sequence, 1}, heads_, heads_ / group_, enough_, groups_).count(1);
    }
    // The most pieces, if keys are divided.
    std::int64_t most_pieces() const {
        std::int64_t pieces = 0;
        for (const Sequence& sequence : sequences_)
            pieces += count_of(sequence) * std::max(1, sequence.kv_len / kLeastKeys);
        return pieces;
    }

    // Calls visit(first, count) for a part of a group, or for whole groups.
    template <typename Visit> void visit_heads(const Piece& piece, const Visit& visit) const {
        const int span = std::max(group_, piece.heads);
        for (int first = 0; first < heads_; first += span) {
            const int end = std::min(first + span, heads_);
            for (int head = first; head < end; head += piece.heads)
                visit(head, std::min(piece.heads, end - head));
        }
    }

    void add(std::vector<SequenceWork>& work, int index, int blocks, std::int64_t keys_each) {
        const Sequence& sequence = sequences_[static_cast<std::size_t>(index)];
        if (sequence.q_len == 0) return;
        const Piece piece = piece_of(sequence.q_len, group_, blocks, groups_);
        // Later queries see more keys under a causal mask: the long ones first.
        const int last = (sequence.q_len - 1) / piece.queries * piece.queries;
        for (int query = last; query >= 0; query -= piece.queries)
            visit_heads(piece, [&](int head, int heads) {
                add_keys(work,
                         {.request = request_ + index,
                          .head = head,
                          .heads = heads,
                          .query = query,
                          .queries = std::min(piece.queries, sequence.q_len - query),
                          .key = 0,
                          .keys = sequence.kv_len,
                          .part = -1,
                          .parts = 0},
                         keys_each);
            });
    }

    void add_keys(std::vector<SequenceWork>& work, SequenceWork piece, std::int64_t keys_each) {
        const std::int64_t parts = (piece.keys + keys_each - 1) / keys_each;
        if (parts < 2 || !may_split(piece.keys)) {
            work.push_back(piece);
            return;
        }
        const int keys = piece.keys;
        for (std::int64_t i = 0; i < parts; ++i) {
            piece.key = static_cast<int>(i * keys_each);
            piece.keys = static_cast<int>(std::min<std::int64_t>(keys_each, keys - piece.key));
            piece.part = part_count_++;
            piece.parts = i == 0 ? static_cast<int>(parts) : 0;
            work.push_back(piece);
        }
    }

    std::span<const Sequence> sequences_;
    int heads_, group_, enough_, groups_;
    int request_, part_count_;
};

} // namespace

std::vector<SequenceWork> list_work(std::span<const Sequence> sequences, int heads, int kv_heads,
                                    bool batch_invariant, int groups) {
    std::vector<SequenceWork> work;
    if (!batch_invariant) {
        Lister(sequences, heads, kv_heads, kEnoughWork, groups).list(work);
        return work;
    }
    int parts = 0;
    for (std::size_t request = 0; request < sequences.size(); ++request) {
        Lister of_one(sequences.subspan(request, 1), heads, kv_heads, kEnoughOwnWork, groups,
                      static_cast<int>(request), parts);
        of_one.list(work);
        parts = of_one.part_count();
    }
    return work;
}

} // namespace flexc::cpu
