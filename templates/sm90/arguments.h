// The first argument of Hopper's kernels. Included by device and host code: plain C++, fixed
// layout.
#pragma once

#include "common/arguments.h"

namespace sm90 {

// How far the sums of 64 queries in dq's accumulator are: nobody has touched them, the first block
// is storing its part, others may add theirs.
constexpr int kRowBlockUntouched = 0, kRowBlockTaken = 1, kRowBlockStored = 2;

// What lies in the workspace, where Q and KV are lengthened to whole tiles (common/expanded.h). The
// address of what a kernel has no use for is null.
struct KernelArguments : AttentionArguments {
    float* dq_accumulator; // [B, H, Q, D], as warpgroups hold dq: backward_query_gradient.cuh
    // By q - kv + KV: dS summed over each diagonal, [B, H, Q + KV], zeroed, and what was computed
    // before for each distance, [vectors, B, H, Q + KV]. For each key, [vectors, B, H, KV].
    float *distance_sums, *distance_values, *key_values;
    // Of tiles of a dense bias's gradient, how many the first block has stored, two for each block,
    // zeroed. Null: all blocks add.
    int* stored_tiles;
    int* blocks_done;      // of each head of keys: blocks that have added all of theirs to dq
    int blocks_of_head;    // how many there are
    int* row_block_states; // of dq_accumulator, for 64 queries each; null: all blocks add
    int* tiles_taken;      // of keys, beside each block's first, where the backward is persistent
};

} // namespace sm90
