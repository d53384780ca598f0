// Vectors with a number for each distance q - kv, or for each key, of a head.
#pragma once

#include "common/place.cuh"
#include "common/tabulated.h"
#include "sm90/arguments.h"

namespace sm90 {

// Returns the number of a head's queries, or keys, and of those behind them that tiles may have.
__device__ inline int padded(int rows) {
    return static_cast<int>(tabulated_length(rows, mod::TabulatedVectors::kTileOverhang));
}
__device__ inline int distance_count(const AttentionArguments& attention) {
    return padded(attention.q_len) + padded(attention.kv_len);
}

// Return the entry of a distance, and the distance of an entry. Entries are in the order of
// distances, or of keys.
__device__ inline int distance_entry(const AttentionArguments& attention, int distance) {
    return mod::TabulatedVectors::kDistancesComeFirst ? padded(attention.q_len) - distance
                                                      : padded(attention.kv_len) + distance;
}
__device__ inline int distance_of(const AttentionArguments& attention, int entry) {
    return mod::TabulatedVectors::kDistancesComeFirst ? padded(attention.q_len) - entry
                                                      : entry - padded(attention.kv_len);
}

constexpr int kEntryFloats = mod::TabulatedVectors::kDistancesComeFirst ? kStartFloats : 1;

// Return the number of heads that have vectors of their own, and which of them a head uses.
__device__ inline int vector_heads(const AttentionArguments& attention) {
    return (mod::TabulatedVectors::kUseBatch ? attention.batch : 1) *
           (mod::TabulatedVectors::kUseHead ? attention.heads : 1);
}
__device__ inline int vector_head(const AttentionArguments& attention, int b, int h) {
    return (mod::TabulatedVectors::kUseBatch ? b : 0) *
               (mod::TabulatedVectors::kUseHead ? attention.heads : 1) +
           (mod::TabulatedVectors::kUseHead ? h : 0);
}

// One thread's entry, and the element that stands for it.
struct Entry {
    int head, index;
    bool exists;
    int row, key; // in the tensors

    // count: entries of each head, of which a block has kTabulatedStep.
    __device__ Entry(int block, int count)
        : head(block / (count / kTabulatedStep)),
          index(block % (count / kTabulatedStep) * kTabulatedStep + static_cast<int>(threadIdx.x)) {
    }

    static __device__ Entry of_distance(const AttentionArguments& attention, int block) {
        Entry entry(block, distance_count(attention));
        const int distance = distance_of(attention, entry.index);
        entry.exists = -attention.kv_len < distance && distance < attention.q_len;
        entry.row = entry.exists ? max(distance, 0) : 0;
        entry.key = entry.exists ? max(-distance, 0) : 0;
        return entry;
    }
    static __device__ Entry of_key(const AttentionArguments& attention, int block) {
        Entry entry(block, padded(attention.kv_len));
        entry.exists = entry.index < attention.kv_len;
        entry.row = 0;
        entry.key = entry.exists ? entry.index : 0;
        return entry;
    }

    template <typename Visit>
    __device__ void visit(const AttentionArguments& attention, const mod::Arguments& arguments,
                          Visit visit) const {
        const int of_batch = mod::TabulatedVectors::kUseHead ? attention.heads : 1;
        const HeadPlace place(attention, arguments,
                              head / of_batch * attention.heads + head % of_batch);
        visit_element(attention, arguments, place, row, key, visit);
    }
};

// Returns the address of a head's operands, of those that keys have the `which`-th. They lie before
// the vectors by key.
__device__ inline float* key_operands(const KernelArguments& attention, int head, int which = 0) {
    const long long operand = static_cast<long long>(which) * vector_heads(attention) + head;
    return attention.key_values + kOperandFloats * operand * padded(attention.kv_len);
}

// Return the address of a head's vector. which: its index among the vectors.
__device__ inline float* distance_vector(const KernelArguments& attention, int head, int which) {
    if (mod::TabulatedVectors::kDistancesComeFirst)
        return attention.distance_values +
               static_cast<long long>(kEntryFloats) * head * distance_count(attention);
    const long long vector = static_cast<long long>(which) * vector_heads(attention) + head;
    return attention.distance_values + vector * distance_count(attention);
}
__device__ inline float* key_vector(const KernelArguments& attention, int head, int which) {
    const int before = mod::TabulatedVectors::kMultipliesFirst ? which - 1 + kOperandFloats : which;
    const long long vector = static_cast<long long>(before) * vector_heads(attention) + head;
    return attention.key_values + vector * padded(attention.kv_len);
}

} // namespace sm90
