// Kinds of keys: what a program adds by a key's kind is one number for a query and each kind.
#pragma once

#include "sm90/forward_key_blocks.cuh"
#include "sm90/forward_tasks.cuh"
#include "sm90/logits.cuh"

namespace sm90 {

struct NoKeyKinds {
    static constexpr int kProducers = 0; // threads
    static constexpr bool kComeBeforeProducts = false;
    static __device__ void produce(const AttentionArguments&, const mod::Arguments&,
                                   const Shared&) {}
    // Called by consumers before the first MMAs of a tile of queries: store columns for kinds
    // behind it.
    __device__ void store_queries(const mod::Arguments&, const HeadPlace&, const SequenceLength&,
                                  float, int, const Shared&, int, const ConsumerThread&) {}
    // Called by consumers at a tile of queries: where copies of what a head adds are.
    __device__ void find_copies(unsigned) {}
    // Called by consumers: load what products are added to, for keys that have arrived.
    __device__ void start(Scores&, const Shared&, const Position<Keys>&,
                          const ConsumerThread&) const {}
    // The same for the next tile of keys, while exponentials of this one are computed.
    __device__ void start_next(Scores&, const Shared&, const Position<Keys>&, const ConsumerThread&,
                               bool) const {}
    // Adds to products, before their keys' stage is released.
    __device__ void add_apart(Scores&, unsigned, unsigned, const ConsumerThread&) const {}
};

#ifdef FLEXC_HAS_KEY_KINDS

// Returns the kind of a key, -1 for none.
__device__ inline int kind_of_key(const AttentionArguments& attention,
                                  const mod::Arguments& arguments, const HeadPlace& place,
                                  int key) {
    return visit_element(attention, arguments, place, 0, min(key, attention.kv_len - 1),
                         [](const mod::At& at) { return mod::KeyKinds::kind(at); });
}

// Returns what is added for a query and a kind, 0 if there is no such kind.
__device__ inline float addend_of_kind(const mod::Arguments& arguments, const HeadPlace& place,
                                       const mod::Row& row, int q, int kind) {
    if (kind >= mod::KeyKinds::kCount) return 0;
    const mod::Column column =
        mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kind);
    return mod::KeyKinds::addend(mod::At{arguments, place.launch, place.head, row, column, place.b,
                                         place.h, place.h_kv, q, kind});
}

// Threads beside the producer that store something with each tile of keys.
struct KeyKindProducers : public NoKeyKinds {
    static constexpr int kProducers = 96;

  protected:
    // Returns the thread's index among these threads, or -1 if it is none of them.
    static __device__ int thread() {
        return max(static_cast<int>(threadIdx.x) - (128 - kProducers), -1);
    }
    // Calls store(place, stage, first_key) for each tile of keys.
    template <typename Store>
    static __device__ void visit_tiles(const AttentionArguments& attention,
                                       const mod::Arguments& arguments, const Shared& shared,
                                       Store store) {
        Position<Keys> key;
        visit_tasks(attention, arguments, shared, [&](const Task& task, const HeadPlace& place) {
            KeyBlocks::visit(attention, task, [&](int block) {
                shared.keys.empty(key.stage).wait(key.parity ^ 1);
                store(place, key.stage, block * mod::kKeyTile);
                shared.keys.full(key.stage).arrive();
                key.advance();
            });
        });
    }
};

#endif

} // namespace sm90
