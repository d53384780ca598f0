#include "distributed/ulysses.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "distributed/by_keys.h"
#include "distributed/collectives.h"
#include "distributed/rows.h"
#include "distributed/state.h"
#include "distributed/subgroup.h"
#include "distributed/work_tensors.h"

namespace flexc::distributed {

namespace {

using detail::DistributedPlanState;

constexpr std::size_t kHeadDim = 1;

// A tensor that ranks hold by rows, [B, H, rows, .], and compute with by heads, [B, heads of the
// rank, S, .]; or a buffer that is sharded along a dim, of which each rank needs all rows.
struct Item {
    TensorView local, whole;
    bool is_query = false;
    std::optional<std::size_t> buffer_dim = {};

    std::size_t row_dim() const { return buffer_dim.value_or(2); }
    // The local rows of some heads.
    TensorView of_heads(const RowRange& heads) const {
        return buffer_dim ? local : rows_of(local, heads.begin, heads.count(), kHeadDim);
    }
    // The shape for some heads and rows, without memory.
    TensorView packed(std::int64_t heads, std::int64_t rows) const {
        std::vector<std::int64_t> shape(local.shape.begin(), local.shape.begin() + local.rank);
        if (!buffer_dim) shape[kHeadDim] = heads;
        shape[row_dim()] = rows;
        return TensorView::contiguous(nullptr, local.dtype, shape);
    }
};

// The heads of a member of this rank's node.
const RowRange& heads_of(const DistributedPlanState& plan, bool is_query, int member) {
    const HeadShare& share = plan.ulysses->shares[static_cast<std::size_t>(member)];
    return is_query ? share.heads : share.kv_heads;
}
int node_of(const DistributedPlanState& plan) { return plan.ulysses->same_heads->rank(); }

// The rows that each member holds, and where they are in the node's tensor.
class NodeRows {
  public:
    NodeRows(const DistributedPlanState& plan, bool is_query, std::size_t dim = 2)
        : dim_(dim), members_(is_query ? plan.sizes.queries : plan.sizes.keys),
          node_((is_query ? plan.ulysses->queries : plan.ulysses->keys).ranges(node_of(plan))),
          first_(node_of(plan) * plan.ulysses->ranks_per_node) {}

    std::int64_t count(int member) const { return members_.rows(first_ + member); }
    // Calls visit(rows of `packed`, rows of `whole`) for each range of a member.
    template <typename Visit>
    Result<void> each_range(int member, const TensorView& packed, const TensorView& whole,
                            Visit visit) const {
        std::int64_t row = 0;
        for (const RowRange& range : members_.ranges(first_ + member)) {
            if (auto done = visit(rows_of(packed, row, range.count(), dim_),
                                  rows_of(whole, row_of(node_, range.begin), range.count(), dim_));
                !done)
                return done;
            row += range.count();
        }
        return {};
    }

  private:
    std::size_t dim_;
    const Shards& members_;
    std::span<const RowRange> node_;
    int first_;
};

// Exchanges all items between all pairs of members; a rank's messages to itself are copied.
class AllToAll {
  public:
    explicit AllToAll(const DistributedPlanState& plan)
        : plan_(plan), rank_(plan.ulysses->node->rank()), ranks_(plan.ulysses->node->ranks()) {}

    // Turns tensors by rows into tensors by heads.
    Result<void> gather(std::span<const Item> items) {
        const auto work = plan_.work->beside();
        if (!work) return work.error();
        for (const Item& item : items) {
            const NodeRows rows(plan_, item.is_query, item.row_dim());
            const std::int64_t own_heads = heads_of(plan_, item.is_query, rank_).count();
            for (int peer = 0; peer < ranks_; ++peer) {
                const RowRange& theirs = heads_of(plan_, item.is_query, peer);
                const auto to = send(**work, peer, item.packed(theirs.count(), rows.count(rank_)));
                if (!to) return to.error();
                if (auto done = (*work)->copy(item.of_heads(theirs), *to); !done) return done;
                if (auto done = expect(**work, peer, item.packed(own_heads, rows.count(peer)));
                    !done)
                    return done;
            }
        }
        if (auto done = run(); !done) return done;
        std::size_t next = 0;
        for (const Item& item : items)
            for (int peer = 0; peer < ranks_; ++peer)
                if (auto done = NodeRows(plan_, item.is_query, item.row_dim())
                                    .each_range(peer, received_[next++], item.whole,
                                                [&](const TensorView& from, const TensorView& to) {
                                                    return plan_.work->tensors().copy(from, to);
                                                });
                    !done)
                    return done;
        return {};
    }

    // Turns contiguous f32 tensors by heads into tensors by rows. If several ranks have results of
    // one head or buffer, they are added in the order of ranks.
    Result<void> scatter(std::span<const Item> items) {
        const auto work = plan_.work->beside();
        if (!work) return work.error();
        for (const Item& item : items) {
            const NodeRows rows(plan_, item.is_query, item.row_dim());
            const std::int64_t own_heads = heads_of(plan_, item.is_query, rank_).count();
            for (int peer = 0; peer < ranks_; ++peer) {
                const auto to = send(**work, peer, item.packed(own_heads, rows.count(peer)));
                if (!to) return to.error();
                if (auto done =
                        rows.each_range(peer, *to, item.whole,
                                        [&](const TensorView& inside, const TensorView& whole) {
                                            return (*work)->copy(whole, inside);
                                        });
                    !done)
                    return done;
                const std::int64_t their_heads = heads_of(plan_, item.is_query, peer).count();
                if (auto done = expect(**work, peer, item.packed(their_heads, rows.count(rank_)));
                    !done)
                    return done;
            }
        }
        if (auto done = run(); !done) return done;
        std::size_t next = 0;
        for (const Item& item : items)
            for (int peer = 0; peer < ranks_; ++peer)
                if (auto done = plan_.work->tensors().add(
                        received_[next++], item.of_heads(heads_of(plan_, item.is_query, peer)));
                    !done)
                    return done;
        return {};
    }

  private:
    // Both allocate the tensor's memory.
    Result<TensorView> send(TensorWork& work, int peer, TensorView packed) {
        auto memory = work.allocate(bytes_of(packed));
        if (!memory) return memory.error();
        packed.data = memory_->emplace_back(std::move(*memory)).get();
        if (peer == rank_)
            own_.push_back(packed.data);
        else if (bytes_of(packed) > 0)
            sends_.push_back({peer, packed.data, bytes_of(packed)});
        return packed;
    }
    Result<void> expect(TensorWork& work, int peer, TensorView packed) {
        if (peer == rank_) {
            packed.data = own_.back();
        } else {
            auto memory = work.allocate(bytes_of(packed));
            if (!memory) return memory.error();
            packed.data = memory_->emplace_back(std::move(*memory)).get();
            if (bytes_of(packed) > 0) receives_.push_back({peer, packed.data, bytes_of(packed)});
        }
        received_.push_back(packed);
        return {};
    }
    Result<void> run() {
        Communicator& node = *plan_.ulysses->node;
        const auto ticket = plan_.work->start(node, kKeyChannel, sends_, receives_, memory_);
        if (!ticket) return ticket.error();
        // What a rank sends to itself is packed, not received.
        if (auto done = plan_.work->let_messages_begin(); !done) return done;
        return plan_.work->wait(node, *ticket);
    }

    const DistributedPlanState& plan_;
    int rank_, ranks_;
    std::shared_ptr<std::vector<Bytes>> memory_ = std::make_shared<std::vector<Bytes>>();
    std::vector<void*> own_;
    std::vector<Communicator::Message> sends_, receives_;
    std::vector<TensorView> received_;
};

struct Extents {
    explicit Extents(const DistributedPlanState& plan)
        : batch(plan.sizes.batch), heads(plan.sizes.heads), kv_heads(plan.sizes.kv_heads),
          own_heads(plan.ulysses->own_share().heads.count()),
          own_kv_heads(plan.ulysses->own_share().kv_heads.count()),
          node_q_rows(plan.ulysses->queries.rows(node_of(plan))),
          node_k_rows(plan.ulysses->keys.rows(node_of(plan))), q_rows(plan.q_rows),
          k_rows(plan.k_rows), d(plan.kernel->kernel.options().head_dim),
          dv(plan.kernel->kernel.options().head_dim_v), dtype(plan.kernel->kernel.options().dtype) {
    }

    std::int64_t batch, heads, kv_heads, own_heads, own_kv_heads, node_q_rows, node_k_rows, q_rows,
        k_rows, d, dv;
    DType dtype;
};

// The rows of a block, in tensors of all of the rank's heads.
struct BlockRows {
    BlockRows(const DistributedPlanState& plan, std::size_t index) {
        const HeadShare& share = plan.ulysses->own_share();
        const HeadBlock& block = share.blocks[index];
        q = {block.heads.begin - share.heads.begin, block.heads.end - share.heads.begin};
        k = {block.kv_heads.begin - share.kv_heads.begin,
             block.kv_heads.end - share.kv_heads.begin};
    }
    TensorView queries(const TensorView& tensor) const {
        return rows_of(tensor, q.begin, q.count(), 1);
    }
    TensorView keys(const TensorView& tensor) const {
        return rows_of(tensor, k.begin, k.count(), 1);
    }
    RowRange q, k;
};

// The tensor, or zeros if it is absent.
TensorView or_zeros(const TensorView& tensor, const TensorView& zeros) {
    return tensor ? tensor : zeros;
}

// A call's buffers, in which the sharded ones have the rows of this rank's node.
class NodeBuffers {
  public:
    // are_sums: they are f32 gradients, which start at 0.
    NodeBuffers(const DistributedPlanState& plan, std::span<const NamedTensor> own, bool are_sums,
                WorkTensors& memory)
        : all_(own.begin(), own.end()) {
        const Extents n(plan);
        for (const Sharded& sharded : plan.sharded) {
            if (are_sums && !sharded.grad) continue;
            const auto given = std::ranges::find(all_, sharded.name, &NamedTensor::name);
            const TensorView local = given->tensor;
            std::vector<std::int64_t> shape = sharded.shape;
            shape[sharded.dim] = sharded.is_query ? n.node_q_rows : n.node_k_rows;
            given->tensor = memory.zeros(are_sums ? DType::f32 : sharded.dtype, shape);
            items_.push_back({local, given->tensor, sharded.is_query, sharded.dim});
        }
    }
    std::span<const NamedTensor> all() const { return all_; }
    const std::vector<Item>& items() const { return items_; }

  private:
    std::vector<NamedTensor> all_;
    std::vector<Item> items_;
};

std::vector<Item> with(std::initializer_list<Item> tensors, const NodeBuffers& buffers) {
    std::vector<Item> items = tensors;
    items.insert(items.end(), buffers.items().begin(), buffers.items().end());
    return items;
}

Shards node_shards(const Shards& shards, int ranks_per_node) {
    std::vector<std::vector<RowRange>> nodes(
        static_cast<std::size_t>(shards.ranks() / ranks_per_node));
    for (int rank = 0; rank < shards.ranks(); ++rank) {
        auto& node = nodes[static_cast<std::size_t>(rank / ranks_per_node)];
        const auto own = shards.ranges(rank);
        node.insert(node.end(), own.begin(), own.end());
    }
    for (auto& node : nodes)
        std::ranges::sort(node, {}, &RowRange::begin);
    return *Shards::of(shards.length(), std::move(nodes));
}

} // namespace

HeadShare head_share(std::int64_t heads, std::int64_t kv_heads, int ranks, int rank) {
    HeadShare share{
        .heads = {heads * rank / ranks, heads * (rank + 1) / ranks}, .kv_heads = {}, .blocks = {}};
    if (share.heads.count() == 0) return share;
    const std::int64_t group = heads / kv_heads;
    share.kv_heads = {share.heads.begin / group, (share.heads.end - 1) / group + 1};
    for (std::int64_t at = share.heads.begin; at < share.heads.end;) {
        const std::int64_t left = share.heads.end - at, inside = at % group;
        const std::int64_t count =
            inside == 0 && left >= group ? left / group * group : std::min(group - inside, left);
        share.blocks.push_back(
            {{at, at + count},
             {at / group, at / group + std::max<std::int64_t>(count / group, 1)}});
        at += count;
    }
    return share;
}

Ulysses ulysses_of(const DistributedSizes& sizes, const std::shared_ptr<Communicator>& communicator,
                   int ranks_per_node) {
    const int own = communicator->rank();
    std::vector<int> node, same_heads;
    for (int rank = 0; rank < communicator->ranks(); ++rank) {
        if (rank / ranks_per_node == own / ranks_per_node) node.push_back(rank);
        if (rank % ranks_per_node == own % ranks_per_node) same_heads.push_back(rank);
    }
    Ulysses ulysses{.ranks_per_node = ranks_per_node,
                    .queries = node_shards(sizes.queries, ranks_per_node),
                    .keys = node_shards(sizes.keys, ranks_per_node),
                    .node = subgroup(communicator, std::move(node)),
                    .same_heads = subgroup(communicator, std::move(same_heads)),
                    .shares = {},
                    .blocks = {}};
    for (int member = 0; member < ranks_per_node; ++member)
        ulysses.shares.push_back(head_share(sizes.heads, sizes.kv_heads, ranks_per_node, member));
    return ulysses;
}

Result<void> forward_ulysses(const DistributedPlanState& plan, const ForwardTensors& tensors,
                             std::span<const NamedTensor> buffers) {
    const Ulysses& ulysses = *plan.ulysses;
    const Extents n(plan);
    TensorWork& work = plan.work->tensors();
    WorkTensors own(work);
    // A rank without rows has no tensors.
    const TensorView no_q = own.zeros(n.dtype, {n.batch, n.heads, 0, n.d}),
                     no_k = own.zeros(n.dtype, {n.batch, n.kv_heads, 0, n.d}),
                     no_v = own.zeros(n.dtype, {n.batch, n.kv_heads, 0, n.dv});
    const TensorView q = own.zeros(n.dtype, {n.batch, n.own_heads, n.node_q_rows, n.d}),
                     k = own.zeros(n.dtype, {n.batch, n.own_kv_heads, n.node_k_rows, n.d}),
                     v = own.zeros(n.dtype, {n.batch, n.own_kv_heads, n.node_k_rows, n.dv}),
                     o = own.zeros(DType::f32, {n.batch, n.own_heads, n.node_q_rows, n.dv}),
                     lse = own.zeros(DType::f32, {n.batch, n.own_heads, n.node_q_rows}),
                     own_o = own.zeros(DType::f32, {n.batch, n.heads, n.q_rows, n.dv}),
                     own_lse = own.zeros(DType::f32, {n.batch, n.heads, n.q_rows});
    const NodeBuffers node_buffers(plan, buffers, false, own);
    if (!own.made()) return own.made();
    const auto inputs = with({{or_zeros(tensors.q, no_q), q, true},
                              {or_zeros(tensors.k, no_k), k},
                              {or_zeros(tensors.v, no_v), v}},
                             node_buffers);
    if (auto done = AllToAll(plan).gather(inputs); !done) return done;
    for (std::size_t i = 0; i < ulysses.blocks.size(); ++i) {
        const BlockRows rows(plan, i);
        if (auto done = forward_by_keys(
                *ulysses.blocks[i],
                {rows.queries(q), rows.keys(k), rows.keys(v), rows.queries(o), rows.queries(lse)},
                node_buffers.all());
            !done)
            return done;
    }
    const Item outputs[] = {{own_o, o, true}, {own_lse, lse, true}};
    if (auto done = AllToAll(plan).scatter(outputs); !done) return done;
    return copy_wanted(work, {{own_o, tensors.o}, {own_lse, tensors.lse}});
}

Result<void> backward_ulysses(const DistributedPlanState& plan, const BackwardTensors& tensors,
                              std::span<const NamedTensor> buffers,
                              std::span<const NamedTensor> sums) {
    const Ulysses& ulysses = *plan.ulysses;
    const Extents n(plan);
    TensorWork& work = plan.work->tensors();
    WorkTensors own(work);
    const TensorView no_q = own.zeros(n.dtype, {n.batch, n.heads, 0, n.d}),
                     no_k = own.zeros(n.dtype, {n.batch, n.kv_heads, 0, n.d}),
                     no_v = own.zeros(n.dtype, {n.batch, n.kv_heads, 0, n.dv}),
                     no_d_out = own.zeros(n.dtype, {n.batch, n.heads, 0, n.dv}),
                     no_d_lse = own.zeros(DType::f32, {n.batch, n.heads, n.q_rows});
    const TensorView q = own.zeros(n.dtype, {n.batch, n.own_heads, n.node_q_rows, n.d}),
                     k = own.zeros(n.dtype, {n.batch, n.own_kv_heads, n.node_k_rows, n.d}),
                     v = own.zeros(n.dtype, {n.batch, n.own_kv_heads, n.node_k_rows, n.dv}),
                     o = own.zeros(DType::f32, {n.batch, n.own_heads, n.node_q_rows, n.dv}),
                     lse = own.zeros(DType::f32, {n.batch, n.own_heads, n.node_q_rows}),
                     d_out = own.zeros(n.dtype, {n.batch, n.own_heads, n.node_q_rows, n.dv}),
                     d_lse = own.zeros(DType::f32, {n.batch, n.own_heads, n.node_q_rows});
    // Each rank chooses whether its o is f32.
    const TensorView own_o = own.zeros(DType::f32, {n.batch, n.heads, n.q_rows, n.dv});
    const TensorView dq = own.zeros(DType::f32, {n.batch, n.own_heads, n.node_q_rows, n.d}),
                     dk = own.zeros(DType::f32, {n.batch, n.own_kv_heads, n.node_k_rows, n.d}),
                     d_v = own.zeros(DType::f32, {n.batch, n.own_kv_heads, n.node_k_rows, n.dv}),
                     own_dq = own.zeros(DType::f32, {n.batch, n.heads, n.q_rows, n.d}),
                     own_dk = own.zeros(DType::f32, {n.batch, n.kv_heads, n.k_rows, n.d}),
                     own_dv = own.zeros(DType::f32, {n.batch, n.kv_heads, n.k_rows, n.dv});
    const NodeBuffers node_buffers(plan, buffers, false, own), node_sums(plan, sums, true, own);
    if (!own.made()) return own.made();
    if (tensors.o)
        if (auto done = work.copy(tensors.o, own_o); !done) return done;
    const auto inputs = with({{or_zeros(tensors.q, no_q), q, true},
                              {or_zeros(tensors.k, no_k), k},
                              {or_zeros(tensors.v, no_v), v},
                              {own_o, o, true},
                              {or_zeros(tensors.lse, no_d_lse), lse, true},
                              {or_zeros(tensors.d_out, no_d_out), d_out, true},
                              {or_zeros(tensors.d_lse, no_d_lse), d_lse, true}},
                             node_buffers);
    if (auto done = AllToAll(plan).gather(inputs); !done) return done;
    for (std::size_t i = 0; i < ulysses.blocks.size(); ++i) {
        const BlockRows rows(plan, i);
        if (auto done = backward_by_keys(*ulysses.blocks[i],
                                         {.q = rows.queries(q),
                                          .k = rows.keys(k),
                                          .v = rows.keys(v),
                                          .o = rows.queries(o),
                                          .lse = rows.queries(lse),
                                          .d_out = rows.queries(d_out),
                                          .d_lse = rows.queries(d_lse),
                                          .dq = rows.queries(dq),
                                          .dk = rows.keys(dk),
                                          .dv = rows.keys(d_v)},
                                         node_buffers.all(), node_sums.all());
            !done)
            return done;
    }
    const auto outputs = with({{own_dq, dq, true}, {own_dk, dk}, {own_dv, d_v}}, node_sums);
    if (auto done = AllToAll(plan).scatter(outputs); !done) return done;
    return copy_wanted(work, {{own_dq, tensors.dq}, {own_dk, tensors.dk}, {own_dv, tensors.dv}});
}

} // namespace flexc::distributed
