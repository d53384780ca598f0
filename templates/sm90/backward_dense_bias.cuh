// Copies tiles of a bias, which has an element for each query and key, to shared memory, with the
// barriers of the warps that read them: of a dense bias, whose rows the plan makes sure are aligned
// to 16 bytes and have no gaps between keys, or of a shifted read.
#pragma once

#include "common/place.cuh"
#include "common/select.h"
#include "sm90/backward_layout.cuh"
#include "sm90/backward_order.cuh"
#include "sm90/copy_async.cuh"
#include "sm90/shifted_copy.cuh"

namespace sm90 {

// Address of a dense bias for query 0 and a given key, and the step from one query to the next, in
// elements.
template <typename E> struct BiasRows {
    E* corner;
    long long step;

    // address(at) returns the address of an element of the dense bias.
    template <typename Address>
    __device__ static BiasRows of(const AttentionArguments& attention,
                                  const mod::Arguments& arguments, const HeadPlace& place, int key,
                                  Address address) {
        E* const corner = visit_element(attention, arguments, place, 0, key, address);
        return {corner, attention.q_len > 1
                            ? visit_element(attention, arguments, place, 1, key, address) - corner
                            : 0};
    }
};

// Called by one warp: copies the biases of `rows` queries and the tile's keys. A lane keeps its 16
// bytes of keys and steps down the rows. Rows past the end are not written, since their results are
// dropped.
__device__ inline void copy_biases(const BiasRows<const mod::DenseBias::Element>& from,
                                   int first_row, int rows, int keys, unsigned to, Barrier full) {
    constexpr int kChunkKeys = 16 / kBiasBytes;
    constexpr int kChunks = mod::kKeyTile / kChunkKeys, kRows = 32 / kChunks;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = lane / kChunks, key = lane % kChunks * kChunkKeys;
    const mod::DenseBias::Element* next = from.corner + (first_row + row) * from.step + key;
    to += row * kBiasRowBytes + key * kBiasBytes;
    const int last = key < keys ? rows - row : 0;
#pragma unroll 4
    for (int i = 0; i < mod::kQueryTile; i += kRows) {
        if (i < last) copy_async(to + i * kBiasRowBytes, next);
        next += kRows * from.step;
    }
    arrive_after_copies(full);
}

// Where a head's biases come from, for a tile of keys. copy() is called by one warp.
template <typename Bias> class DenseBiasSource {
    using Rows = BiasRows<const typename Bias::Element>;

  public:
    __device__ DenseBiasSource(const AttentionArguments& attention, const mod::Arguments& arguments,
                               const HeadPlace& place, int first_key)
        : rows_(Rows::of(attention, arguments, place, first_key,
                         [](const mod::At& at) { return Bias::address(at); })) {}
    __device__ void copy(const AttentionArguments& attention, int first_row, int first_key,
                         unsigned to, Barrier full) const {
        copy_biases(rows_, first_row, min(attention.q_len - first_row, mod::kQueryTile),
                    attention.kv_len - first_key, to, full);
    }

  private:
    Rows rows_;
};

template <int kRead> class ShiftedBiasSource;
#ifdef FLEXC_HAS_SHIFTED_READS

template <int kRead> class ShiftedBiasSource {
  public:
    __device__ ShiftedBiasSource(const AttentionArguments& attention,
                                 const mod::Arguments& arguments, const HeadPlace& place, int)
        : head_(attention, arguments, place) {}
    // Each lane arrives for what it stores, and once more when its copies are complete.
    __device__ void copy(const AttentionArguments& attention, int first_row, int first_key,
                         unsigned to, Barrier full) const {
        const ShiftedHead<kRead> head = head_.again();
        const ShiftedCopy<kRead> copies(head, first_row,
                                    min(attention.q_len - first_row, mod::kQueryTile), first_key,
                                    min(attention.kv_len - first_key, mod::kKeyTile), to);
        if (copies.are_inside())
            copies.template copy<32>(static_cast<int>(threadIdx.x) % 32, head,
                                     mod::DenseBias::kIsByKey ? attention.kv_len
                                                              : attention.q_len);
        else
            copies.copy_with_zeros(to);
        full.arrive();
        arrive_after_copies(full);
    }

  private:
    ShiftedHead<kRead> head_;
};

#endif

// No bias is copied.
struct NoBiasTiles {
    struct Source {
        __device__ Source(const AttentionArguments&, const mod::Arguments&, const HeadPlace&,
                          int first_key) {}
    };
    // Called by a producer warp: copies the biases of a tile of queries.
    static __device__ void copy(const AttentionArguments&, Shared, const Source&, int, int, int) {}
    // Called by consumer warpgroups: wait for the biases of a step, and release them once P, or dS,
    // is computed.
    static __device__ void wait(const Shared&, unsigned) {}
    static __device__ void release_after_p(const Shared&, unsigned) {}
    static __device__ void release_after_d_scores(const Shared&, unsigned) {}
};

// Biases are copied to a ring of tiles. kHolds: derivatives read them too, so that they are
// released after dS instead of P.
template <bool kHolds> struct BiasTiles {
    using Source = Select<kBiasIsShifted, ShiftedBiasSource<0>, DenseBiasSource<mod::DenseBias>>;

    static __device__ void copy(const AttentionArguments& attention, Shared shared,
                                const Source& source, int first_row, int first_key, int step) {
        const int stage = step % kBiasRing;
        shared.biases_empty(stage).wait(step / kBiasRing % 2 ^ 1);
        source.copy(attention, first_row, first_key,
                    shared.base + kLayout.biases + stage * kBiasTileBytes,
                    shared.biases_full(stage));
    }
    static __device__ void wait(const Shared& shared, unsigned step) {
        shared.biases_full(stage_of(step)).wait(step / kBiasRing % 2);
    }
    static __device__ void release_after_p(const Shared& shared, unsigned step) {
        if (!kHolds) shared.biases_empty(stage_of(step)).arrive();
    }
    static __device__ void release_after_d_scores(const Shared& shared, unsigned step) {
        if (kHolds) shared.biases_empty(stage_of(step)).arrive();
    }

  private:
    static __device__ int stage_of(unsigned step) { return static_cast<int>(step % kBiasRing); }
};

using CopiedBias = Select<kCopiesBiases, BiasTiles<kHoldsBiases>, NoBiasTiles>;

} // namespace sm90
