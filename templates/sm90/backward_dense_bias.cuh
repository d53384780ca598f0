// Copies tiles of a dense bias, which has an element for each query and key, to shared memory, with
// the barriers of the warps that read them. The plan makes sure that rows are aligned to 16 bytes
// and have no gaps between keys.
#pragma once

#include "common/place.cuh"
#include "common/select.h"
#include "sm90/backward_layout.cuh"
#include "sm90/copy_async.cuh"

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

// No dense bias is copied.
struct NoBiasTiles {
    // Called by a producer warp: copies the biases of a tile of queries.
    static __device__ void copy(const AttentionArguments&, Shared,
                                const BiasRows<const mod::DenseBias::Element>&, int, int, int) {}
    // Called by consumer warpgroups: wait for the biases of a step, and release them once P, or dS,
    // is computed.
    static __device__ void wait(const Shared&, unsigned) {}
    static __device__ void release_after_p(const Shared&, unsigned) {}
    static __device__ void release_after_d_scores(const Shared&, unsigned) {}
};

// Biases are copied to a ring of tiles. kHolds: derivatives read them too, so that they are
// released after dS instead of P.
template <bool kHolds> struct BiasTiles {
    static __device__ void copy(const AttentionArguments& attention, Shared shared,
                                const BiasRows<const mod::DenseBias::Element>& biases,
                                int first_row, int first_key, int step) {
        const int stage = step % kBiasRing;
        shared.biases_empty(stage).wait(step / kBiasRing % 2 ^ 1);
        copy_biases(biases, first_row, min(attention.q_len - first_row, mod::kQueryTile),
                    attention.kv_len - first_key,
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
