// Divides the output of a warp by its rows' sums of P, and stores it.
#pragma once

#include "sm90/copy_rows.cuh"
#include "sm90/forward_layout.cuh"
#include "sm90/pack.cuh"
#include "sm90/softmax.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

constexpr int kOutputs = round_up_16(mod::kHeadDimV) / 2; // accumulators of a thread
using Output = float[kOutputs];
using P = unsigned[mod::kKeyTile / 16][4]; // left operands, 16 keys each

// Returns a function that packs pairs of accumulators as Softmax::compute_p passes them.
__device__ inline auto packed_into(P& p) {
    return [&p](int i, float left, float right) {
        p[i / 4][i % 4] = pack(mod::Element{}, left, right);
    };
}

__device__ inline void multiply_rows(Output& output, const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i)
        output[i] *= factor[fragment_row(i)];
}

// Stores the largest score of the thread's row r, if the program returns it.
template <typename SoftmaxOfRows>
__device__ void store_max_score(const AttentionArguments& attention, const HeadPlace& place,
                                const SequenceLength& length, int row, bool nothing_visible,
                                const SoftmaxOfRows& softmax, int r, const Logits& logits) {
    if constexpr (mod::kReturnsMaxScores) {
        const TensorArgument& to = attention.max_scores;
        if (to.data && threadIdx.x % 4 == 0 && row < length.query_rows())
            static_cast<float*>(to.data)[place.b * to.stride_b + place.h * to.stride_h +
                                         (length.first_query_row() + row) * to.stride_s] =
                nothing_visible ? negative_infinity() : softmax.max_score(r, logits);
    }
}

// Divides by the sums, and stores the log-sum-exp and the largest scores. `row` is the first of the
// thread's two. Rows that a request does not use get the results of rows that see nothing.
__device__ inline void normalise(const AttentionArguments& attention,
                                 const mod::Arguments& arguments, const HeadPlace& place,
                                 const SequenceLength& length, int row, const Logits& logits,
                                 const Softmax& softmax, Output& output) {
    float* const lse = static_cast<float*>(attention.lse.data) + place.b * attention.lse.stride_b +
                       place.h * attention.lse.stride_h +
                       length.first_query_row() * attention.lse.stride_s;
    float factor[2];
    bool is_unused[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float sum = logits.whole_sum(r, quad_sum(softmax.sum[r]));
        is_unused[r] = !mod::Layouts::kAreDense && row + 8 * r >= length.queries();
        const bool nothing_visible = softmax.saw_nothing(r, sum) || is_unused[r];
        float whole = sum;
        if constexpr (mod::Sink::kExists) {
            const float sink = mod::Sink::value(arguments, place.b, place.h, place.h_kv,
                                                length.q_idx(row + 8 * r));
            whole += exp2_fast(softmax.exponent_of_sink(r, sink, logits));
        }
        factor[r] = nothing_visible ? 0 : reciprocal_fast(whole);
        if (attention.lse.data && threadIdx.x % 4 == 0 && row + 8 * r < length.query_rows())
            lse[(row + 8 * r) * attention.lse.stride_s] =
                nothing_visible ? negative_infinity() : softmax.lse(r, sum, logits);
        store_max_score(attention, place, length, row + 8 * r, nothing_visible, softmax, r, logits);
    }
    multiply_rows(output, factor);
    if constexpr (!mod::Layouts::kAreDense)
#pragma unroll
        for (int i = 0; i < kOutputs; ++i)
            output[i] = is_unused[fragment_row(i)] ? 0 : output[i];
}

// Writes the output to the warp's own shared memory: 16 rows of each panel.
__device__ inline void stage(const Output& output, unsigned memory) {
    // Computed here, so that no address is kept in registers from tile to tile.
    const int lane = computed_again(static_cast<int>(threadIdx.x) % 32);
    // Each lane provides the address of a row of one of four 8 x 8 matrices, two of them side by
    // side. Chunks of 16 bytes are swizzled within the 128 bytes of a row.
    const unsigned first = memory + (lane & 15) * kRowBytes + ((lane >> 4) ^ (lane & 7)) * 16;
#pragma unroll
    for (int i = 0; i < kOutputs; i += 8) {
        const int chunk = i / 4;
        const unsigned to = (first ^ chunk % 8 * 16) + chunk / 8 * kQueryPanel;
        const mod::Element kind{};
        store_matrices(
            to, pack(kind, output[i], output[i + 1]), pack(kind, output[i + 2], output[i + 3]),
            pack(kind, output[i + 4], output[i + 5]), pack(kind, output[i + 6], output[i + 7]));
    }
    publish_shared();
    __syncwarp();
}
// Stores the staged output to global memory.
__device__ inline void store_staged(const TensorMap& map, Corner corner, unsigned memory) {
    if (computed_again(static_cast<int>(threadIdx.x) % 32) == 0) {
#pragma unroll
        for (int panel = 0; panel < kValuePanels; ++panel) {
            store_box(map, corner, memory + panel * kQueryPanel);
            corner.column += kPanelColumns;
        }
        wait_for_store_reads();
    }
}

// Stores a partial result: floats, whose columns lie side by side.
__device__ inline void store_floats(const AttentionArguments& attention, const HeadPlace& place,
                                    const SequenceLength& length, int row, const Output& output) {
    const TensorArgument& o = attention.o;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (row + 8 * r >= length.query_rows()) continue;
        float* const to = static_cast<float*>(o.data) + place.b * o.stride_b +
                          place.h * o.stride_h + (row + 8 * r) * o.stride_s +
                          length.first_query_row() * o.stride_s +
                          static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
        for (int i = 2 * r; i < mod::kHeadDimV / 2; i += 4)
            store_pair(to + fragment_column(i), output[i], output[i + 1]);
    }
}

} // namespace sm90
