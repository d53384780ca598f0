// A tile of keys of one head, which a block multiplies with all queries that see it.
#pragma once

#include "common/place.cuh"
#include "common/tile_walk.cuh"
#include "sm90/backward_lengths.cuh"

namespace sm90 {

// A tile of keys, and how long its batch entry is.
struct KeyTile : KeyLengths {
    int b, h_kv, first_kv;
    int count; // tiles of queries that a block mask names for the group's first query head

    __device__ KeyTile(int b, int h_kv, int first_kv, int count = 0)
        : b(b), h_kv(h_kv), first_kv(first_kv), count(count) {}

    // Returns the tile of a slot in shared memory. It is read again wherever it is used, which
    // saves registers.
    static __device__ const KeyTile& in_shared(int slot) {
        return reinterpret_cast<const KeyTile*>(shared_memory + kLayout.key_tiles)[slot];
    }
    // Returns the value that stands for the end, after the last tile.
    static __device__ KeyTile none() { return KeyTile(0, 0, -1); }
    __device__ bool is_none() const { return first_kv < 0; }

    __device__ void store(unsigned to) const {
        KeyLengths::store(to);
        store_shared(to + KeyLengths::kBytes, b, h_kv, first_kv, count);
    }

    __device__ TileLength length(const AttentionArguments& attention) const {
        return KeyLengths::of(attention, b);
    }
    // Where its rows are in tensors of keys: the index in the first dimension, the first row, and
    // the row behind the last that the batch entry has.
    __device__ int entry(const AttentionArguments& attention) const {
        return length(attention).entry();
    }
    __device__ int first_row(const AttentionArguments& attention) const {
        return static_cast<int>(length(attention).first_key_row()) + first_kv;
    }
    __device__ int end_row(const AttentionArguments& attention) const {
        return static_cast<int>(length(attention).first_key_row()) + length(attention).key_rows();
    }
    // The same for threads that hold the place, whose batch entry it is.
    __device__ TileLength length(const AttentionArguments& attention,
                                 const HeadPlace& place) const {
        return KeyLengths::of(attention, place.b);
    }

    __device__ int index() const { return first_kv / mod::kKeyTile; }
    // Returns the index of its head of keys over batch and heads.
    __device__ int head(const AttentionArguments& attention) const {
        return b * attention.kv_heads + h_kv;
    }
    // Returns the row of the block mask for this tile and query head h.
    __device__ long long mask_row(const AttentionArguments& attention, int h) const {
        return row_of_keys(attention.block_mask, length(attention), h, index());
    }
    __device__ int count_of(const AttentionArguments& attention, int h) const {
        return attention.block_mask.rows[mask_row(attention, h)].count;
    }
};

} // namespace sm90
