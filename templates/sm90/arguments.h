// The first argument of Hopper's kernels. Included by device and host code: plain C++, fixed
// layout.
#pragma once

#include "common/arguments.h"

namespace sm90 {

// States of a row block of 64 queries in dq's accumulator: no block has touched it; the first block
// is storing its part; others may add theirs.
constexpr int kRowBlockUntouched = 0, kRowBlockTaken = 1, kRowBlockStored = 2;

// Addresses in the workspace, where Q and KV are lengthened to whole tiles (common/tabulated.h). An
// address that a kernel has no use for is null.
struct KernelArguments : AttentionArguments {
    float* dq_accumulator; // [B, H, Q, D], as warpgroups hold dq: backward_query_gradient.cuh
    // distance_sums: dS summed over each diagonal, [B, H, Q + KV], zeroed. distance_values: what
    // was computed before for each distance, [vectors, B, H, Q + KV]. Both are indexed by q - kv +
    // KV. key_values: what was computed before for each key, [vectors, B, H, KV].
    float *distance_sums, *distance_values, *key_values;
    // Numbers of tiles of a dense bias's gradient that the first block has stored, two for each
    // block, zeroed. Null: all blocks add.
    int* stored_tiles;
    int* blocks_done;      // for each head of keys: blocks that have added all of their dq
    int blocks_of_head;    // number of blocks of a head of keys
    int* row_block_states; // states of dq_accumulator's row blocks; null: all blocks add
    int* tiles_taken;      // key tiles taken beside each block's first, in a persistent backward
    // What was computed before for each query and key, [B, Q, KV], by tiles: pair_kinds.cuh.
    unsigned char* pair_kinds;
};

} // namespace sm90
