// Kinds of keys: what a program adds by a key's kind is the product of a row with an addend for
// each kind and of a column with a one where the key's kind is, and zeros. Both lie behind queries
// and keys in their stages, as more columns that the MMAs of QK sum over. An addend is the sum of
// two bf16 numbers, whatever the type of queries and keys: that has the range of floats. Consumers
// store those of their queries when these arrive; threads beside the producer store the ones with
// each tile of keys.
#pragma once

#include "common/math.cuh"
#include "common/select.h"
#include "sm90/forward_key_blocks.cuh"
#include "sm90/forward_tasks.cuh"
#include "sm90/logits.cuh"
#include "sm90/pack.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

struct NoKeyKinds {
    static constexpr int kProducers = 0; // threads
    static __device__ void produce(const AttentionArguments&, const mod::Arguments&,
                                   const Shared&) {}
    // By consumers, before the first MMAs of a tile of queries. memory: their stage.
    __device__ void store_queries(const mod::Arguments&, const HeadPlace&, const SequenceLength&,
                                  float, int, unsigned, const ConsumerThread&) {}
    // After the MMAs, of products.
    __device__ void restore_infinities(Scores&) const {}
};

class MultipliedKeyKinds : public NoKeyKinds {
  public:
    static constexpr int kProducers = 96;

    static __device__ void produce(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const Shared& shared) {
        const int thread = static_cast<int>(threadIdx.x) - (128 - kProducers);
        if (thread < 0) return;
        Position<Keys> key;
        visit_tasks(attention, arguments, shared, [&](const Task& task, const HeadPlace& place) {
            KeyBlocks::visit(attention, task, [&](int block) {
                shared.keys.empty(key.stage).wait(key.parity ^ 1);
#pragma unroll 1
                for (int row = thread; row < mod::kKeyTile; row += kProducers)
                    store_key(shared.keys.at(key.stage) + kLayout.kind_keys, row,
                              kind_of(attention, arguments, place, block * mod::kKeyTile + row));
                publish_shared();
                shared.keys.full(key.stage).arrive();
                key.advance();
            });
        });
    }

    // Each warp its own rows.
    __device__ void store_queries(const mod::Arguments& arguments, const HeadPlace& place,
                                  const SequenceLength& length, float scale, int warp_row,
                                  unsigned memory, const ConsumerThread& thread) {
        // Two lanes have a row, and take turns in its chunks.
        const int row = thread.lane / 2;
        has_infinities_ =
            __any_sync(0xffffffffu, !store_query(arguments, place, length.q_idx(warp_row + row),
                                                 1 / scale, memory + kLayout.kind_queries,
                                                 thread.warp_row() + row, thread.lane % 2));
        publish_shared();
        synchronize(1 + kConsumers + thread.warpgroup, 128);
    }
    __device__ void restore_infinities(Scores& scores) const {
        if (!has_infinities_) return;
#pragma unroll
        for (float& score : scores)
            score = restored(score);
    }

    // Every other chunk of a row of the tile; whether all its addends are finite. An infinite one
    // must not meet zeros: the largest number is in its place.
    static __device__ bool store_query(const mod::Arguments& arguments, const HeadPlace& place,
                                       int q, float per_product, unsigned queries, int row,
                                       int first_chunk) {
        const mod::Row of_query =
            mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q);
        bool are_finite = true;
#pragma unroll 2
        for (int chunk = first_chunk; chunk < kChunks; chunk += 2) {
            float addends[8];
#pragma unroll
            for (int i = 0; i < 8; ++i)
                addends[i] = addend_of(arguments, place, of_query, q, 8 * chunk + i);
            unsigned first[4], second[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float x = in_products(addends[2 * i], per_product, are_finite);
                const float y = in_products(addends[2 * i + 1], per_product, are_finite);
                first[i] = pack(flexc_bf16{}, x, y);
                second[i] = pack(flexc_bf16{}, x - flexc_first(flexc_bf16{}, first[i]),
                                 y - flexc_second(flexc_bf16{}, first[i]));
            }
            store_chunk(queries, kQueryPanel, row, chunk, first);
            store_chunk(queries, kQueryPanel, row, kChunks + chunk, second);
        }
        return are_finite;
    }
    // A row of a tile of keys. kind: -1 for none.
    static __device__ void store_key(unsigned keys, int row, int kind) {
        constexpr unsigned kOne = 0x3f80; // of bf16
        const unsigned one = kind % 2 == 0 ? kOne : kOne << 16;
        // Of eight columns, both parts are in one step.
#pragma unroll
        for (int chunk = 0; chunk < kKeyChunks; ++chunk) {
            const int word = kind < 0 ? kind : kind / 2 - chunk % kChunks * 4;
            const unsigned words[4] = {word == 0 ? one : 0, word == 1 ? one : 0,
                                       word == 2 ? one : 0, word == 3 ? one : 0};
            store_chunk(keys, kKeyPanel, row, chunk, words);
        }
    }
    static __device__ int kind_of(const AttentionArguments& attention,
                                  const mod::Arguments& arguments, const HeadPlace& place,
                                  int key) {
        return visit_element(attention, arguments, place, 0, min(key, attention.kv_len - 1),
                             [](const mod::At& at) { return mod::key_kind(at); });
    }
    static __device__ float restored(float product) {
        return fabsf(product) > kBetween ? product + product : product;
    }

  private:
    // The largest addend of a product that is finite, what stands for one that is not, and where
    // sums of products and one of them are told apart.
    static constexpr float kMost = 0x1p127f, kInfinite = 0x1.fep127f, kBetween = 0x1.8p127f;
    // Of 16 bytes, in one part.
    static constexpr int kColumns = mod::kSizes.kind_columns;
    static constexpr int kChunks = kColumns == 0 ? 1 : kColumns / 8;
    static constexpr int kKeyChunks = kChunks == 1 ? 2 : kChunks;

    static __device__ void store_chunk(unsigned panels, int panel_bytes, int row, int chunk,
                                       const unsigned (&words)[4]) {
        store_shared(panels + chunk / 8 * panel_bytes + row * kRowBytes + ((chunk ^ row) % 8) * 16,
                     static_cast<int>(words[0]), static_cast<int>(words[1]),
                     static_cast<int>(words[2]), static_cast<int>(words[3]));
    }
    // In the units of products. What is no number makes none of its row, as what is infinite does.
    static __device__ float in_products(float addend, float per_product, bool& are_finite) {
        if (!(fabsf(addend) <= kMostFinite)) {
            are_finite = false;
            return addend == negative_infinity() ? -kInfinite : kInfinite;
        }
        return fminf(fmaxf(multiply_finite(addend, per_product), -kMost), kMost);
    }
    static __device__ float addend_of(const mod::Arguments& arguments, const HeadPlace& place,
                                      const mod::Row& row, int q, int kind) {
        if (kind >= mod::kKeyKinds) return 0;
        const mod::Column column =
            mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kind);
        return mod::addend_of_kind(mod::At{arguments, place.launch, place.head, row, column,
                                           place.b, place.h, place.h_kv, q, kind});
    }

    bool has_infinities_; // in the warp's rows
};

using KeyKinds = Select<mod::kSizes.kind_columns == 0, NoKeyKinds, MultipliedKeyKinds>;

} // namespace sm90
