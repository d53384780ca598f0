// Arguments that the host passes to every attention kernel beside mod::Arguments. Included by
// device and host code: plain C++, fixed layout.
#pragma once

#include "common/block_mask.h"
#include "common/host_device.h"
#include "common/sequences.h"

// Strides in elements. data == nullptr: the tensor is absent.
struct TensorArgument {
    void* data;
    long long stride_b, stride_h, stride_s, stride_d;
};

// Statistics of the softmax of each query, which a backward computes first: its log-sum-exp in base
// 2, the reference score that this is relative to (see sm80/row_references.cuh), and delta =
// rowsum(d_out * o) - d_lse. (In FlashAttention: LSE_log2 and dPsum.) Those of 64 queries lie side
// by side, so that a tile's are contiguous.
enum RowStatistic { kRowLseLog2, kRowReference, kRowDelta };
constexpr int kRowStatistics = 3;
FLEXC_SHARED constexpr long long row_statistic_place(long long row, RowStatistic statistic) {
    return row / 64 * (64 * kRowStatistics) + statistic * 64 + row % 64;
}

constexpr int kReferenceRows = 128; // rows of a block of flexc_backward_references

// How a kernel writes an output.
enum OutputFlag : unsigned {
    kOutputF32 = 1,        // the tensor is f32, whatever the element type is
    kOutputAccumulate = 2, // add to what is there (f32 only)
};

// Scales by which elements of keys or values in a narrow type are multiplied. stride_b: between
// entries, as for k and v. data == nullptr: 1.
struct ScaleArgument {
    const float* data;
    long long stride_b, stride_h;

    FLEXC_SHARED const float* at(long long b, int h_kv) const {
        return data + b * stride_b + h_kv * stride_h;
    }
    FLEXC_SHARED float of(long long b, int h_kv) const {
        return data == nullptr ? 1 : *at(b, h_kv);
    }
};

// Arguments of all kernels. A family of kernels adds a struct: sm80/arguments.h, sm90/arguments.h.
struct AttentionArguments {
    TensorArgument q, k, v, o; // [B, H, Q, D], [B, H_KV, KV, D], [B, H_KV, KV, DV], [B, H, Q, DV]
    TensorArgument lse;        // [B, H, Q] f32, natural log; stride_d is unused
    // As lse; d_lse in a backward, max_scores in a forward with mod::kReturnsMaxScores.
    union {
        TensorArgument d_lse, max_scores;
    };
    TensorArgument d_out, dq, dk, dv; // as o, q, k, v
    float* row_statistics;            // workspace [B, H, statistic_rows / 64, kRowStatistics, 64]
    int statistic_rows;               // rows of a head there: whole tiles of kReferenceRows
    long long q_offset, kv_offset;    // index that the program sees = row + offset
    int batch, heads, kv_heads, q_len, kv_len;
    float scale;                                    // of q·k
    unsigned o_flags, dq_flags, dk_flags, dv_flags; // OutputFlag
    BlockMask block_mask;                           // of this kernel; see mod::Mask::kHasBlockMask
    // Requests, in layouts other than dense: q_len and kv_len are the most of a request then.
    SequenceArguments sequences;
    long long q_rows, kv_rows; // of ragged tensors: at least those of all requests
    ScaleArgument k_scale, v_scale;
};
