// What the host hands to every attention kernel beside mod::Arguments. Included by device and host
// code: plain C++, fixed layout.
#pragma once

#include "common/block_mask.h"
#include "common/host_device.h"

// Strides in elements. data == nullptr: the tensor is absent.
struct TensorArgument {
    void* data;
    long long stride_b, stride_h, stride_s, stride_d;
};

// Floats of each query that a backward computes before: what its weights are relative to, see
// sm80/row_references.cuh, and rowsum(d_out * o) - d_lse. 64 queries have theirs side by side, so
// that a tile's are one piece of memory.
enum RowFact { kLseLog2Fact, kReferenceFact, kDeltaFact };
constexpr int kRowFacts = 3;
FLEXC_SHARED constexpr long long row_fact_place(long long row, RowFact fact) {
    return row / 64 * (64 * kRowFacts) + fact * 64 + row % 64;
}

constexpr int kReferenceRows = 128; // of a block of flexc_backward_references

// Sums of a slab that nobody has touched, that the first block stores, that others may add to.
constexpr int kSlabUntouched = 0, kSlabTaken = 1, kSlabStored = 2;

// How a kernel writes an output.
enum OutputFlag : unsigned {
    kOutputF32 = 1,        // the tensor is f32, whatever the element type is
    kOutputAccumulate = 2, // add to what is there (f32 only)
};

struct AttentionArguments {
    TensorArgument q, k, v, o; // [B, H, Q, D], [B, H_KV, KV, D], [B, H_KV, KV, DV], [B, H, Q, DV]
    TensorArgument lse, d_lse; // [B, H, Q] f32, natural log; stride_d is unused
    TensorArgument d_out, dq, dk, dv; // as o, q, k, v
    float* delta; // workspace [B, H, Q]: rowsum(d_out * o) - d_lse; not of Hopper's backward
    float* dq_accumulator; // workspace [B, H, Q, D] f32, zeroed; fused backward only
    float* row_facts;      // workspace [B, H, fact_rows / 64, kRowFacts, 64], of a backward
    int fact_rows;         // q_len lengthened to a multiple of 128
    // Workspace of Hopper's kernels, by q - kv + KV with Q and KV lengthened (common/expanded.h):
    // dS summed over each diagonal, [B, H, Q + KV], zeroed; what was computed before for each
    // distance, [vectors, B, H, Q + KV]; and for each key, [vectors, B, H, KV].
    float *distance_sums, *distance_values, *key_values;
    // Of Hopper's backward: of tiles of a dense bias's gradient, how many the first block has
    // stored, two for each block, zeroed. Null: all blocks add.
    int* stored_tiles;
    // Of Hopper's backward: of each head of keys, how many blocks have added all of theirs to dq,
    // and how many there are. Null: they do not say.
    int* blocks_done;
    int blocks_of_head;
    // Likewise, of each slab of 64 queries, how far its sums in dq's accumulator are. Null: they
    // were zeroed, and all blocks add to them.
    int* slab_states;
    long long q_offset, kv_offset; // index that the program sees = row + offset
    int batch, heads, kv_heads, q_len, kv_len;
    float scale;                                    // of q·k
    unsigned o_flags, dq_flags, dk_flags, dv_flags; // OutputFlag
    BlockMask block_mask;                           // of this kernel; see mod::kHasBlockMask
    // Of Hopper's backward that is persistent (mod::kPersistent): how many tiles of keys have been
    // taken beside each block's first.
    int* tiles_taken;
};
