// From scores to the gradient of scores, element by element: the same for every backward kernel.
#pragma once

#include "common/math.cuh"
#include "common/place.cuh"
#include "sm80/backward_products.cuh"

// What a thread knows about its rows of a tile of scores.
template <int kRows> struct ScoreRows {
    mod::Row value[kRows];
    int q[kRows]; // as the program sees it; rows past the end repeat the last
    bool inside[kRows];
    float lse[kRows];
    float delta[kRows]; // sum over d of d_out * o, less d_lse
};

// lse and delta of rows first_q + [0, kCount) start on their way to shared memory, lse first. Rows
// past the end become zeros.
template <int kThreads, int kCount>
__device__ inline void load_row_sums(unsigned to, const AttentionArguments& attention, int b, int h,
                                     int first_q) {
    const float* const lse = static_cast<const float*>(attention.lse.data) +
                             b * attention.lse.stride_b + h * attention.lse.stride_h;
    const float* const delta =
        attention.delta + (static_cast<long long>(b) * attention.heads + h) * attention.q_len;
#pragma unroll 1
    for (int i = threadIdx.x; i < kCount; i += kThreads) {
        const int q = first_q + i;
        const bool inside = q < attention.q_len;
        sm80::copy_async<4>(to + 4 * i, lse + q * attention.lse.stride_s, inside);
        sm80::copy_async<4>(to + 4 * (kCount + i), delta + q, inside);
    }
}

// The rows of a Scores accumulator whose tile starts at first_q; `sums` is where load_row_sums put
// them.
template <typename Scores, int kCount>
__device__ inline void
read_rows(ScoreRows<Scores::kRows>& rows, unsigned sums, const AttentionArguments& attention,
          const mod::Arguments& arguments, const HeadPlace& place, int first_q) {
#pragma unroll
    for (int i = 0; i < Scores::kRows; ++i) {
        const int row = Scores::row(i), position = first_q + row;
        const float lse = sm80::load_shared_float(sums + 4 * row);
        // Nothing is visible in the row: an infinite lse makes every weight zero.
        rows.lse[i] = lse == negative_infinity() ? -lse : lse;
        rows.delta[i] = sm80::load_shared_float(sums + 4 * (kCount + row));
        rows.inside[i] = position < attention.q_len;
        rows.q[i] = min(position, attention.q_len - 1) + static_cast<int>(attention.q_offset);
        rows.value[i] = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                    place.h_kv, rows.q[i]);
    }
}

// exp(score - lse). Where scores are rounded products anyway, one instruction less.
__device__ inline float weight_of(float score, float lse) {
    if constexpr (sizeof(mod::Element) == 4)
        return exp2_fast((score - lse) * kLog2E);
    else
        return exp2_fast(score * kLog2E - lse * kLog2E);
}

// products (q k') become weights, P; d_weights (d_out v') become gradients with respect to the
// score before the mod, dS. What is hidden becomes zero by selection, so that nothing that a mod
// gives there matters. kAll: the caller knows that every element is visible.
template <bool kAll, typename Scores>
__device__ void differentiate(Scores& products, Scores& d_weights,
                              const ScoreRows<Scores::kRows>& rows,
                              const AttentionArguments& attention, const mod::Arguments& arguments,
                              const HeadPlace& place, mod::GradientSums& sums, int first_kv) {
#pragma unroll
    for (int column = 0; column < Scores::kColumns; ++column)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int position = first_kv + Scores::column(column) + side;
            const bool column_inside = kAll || position < attention.kv_len;
            const int kv =
                min(position, attention.kv_len - 1) + static_cast<int>(attention.kv_offset);
            const mod::Column value = mod::at_column(arguments, place.launch, place.head, place.b,
                                                     place.h, place.h_kv, kv);
#pragma unroll
            for (int row = 0; row < Scores::kRows; ++row) {
                const mod::At at{arguments, place.launch, place.head, rows.value[row], value,
                                 place.b,   place.h,      place.h_kv, rows.q[row],     kv};
                float& product = products.at(row, column, side);
                float& gradient = d_weights.at(row, column, side);

                mod::Joint joint{product * attention.scale, 1, {}};
                bool visible = true;
                if constexpr (!kAll) {
                    visible = column_inside && rows.inside[row];
                    if constexpr (mod::kHasMask) visible = visible && mod::visible(at);
                }
                if constexpr (mod::kHasScoreMod) {
                    joint = mod::joint(at, joint.score);
                    visible = visible && joint.score != negative_infinity();
                }
                const float weight = weight_of(joint.score, rows.lse[row]);
                const float d_modified = weight * (gradient - rows.delta[row]);
                if constexpr (mod::kAddsGradients) {
                    if (visible) {
                        mod::sum_gradients(at, joint, d_modified, sums);
                        mod::add_gradients(at, joint, d_modified);
                    }
                }
                product = visible ? weight : 0;
                gradient = visible ? d_modified * joint.d_score : 0;
            }
        }
}

// Picks the form of differentiate that this warp's rectangle of the tile at (first_q, first_kv)
// needs.
template <typename Scores>
__device__ inline void
differentiate_tile(Scores& products, Scores& d_weights, const ScoreRows<Scores::kRows>& rows,
                   const AttentionArguments& attention, const mod::Arguments& arguments,
                   const HeadPlace& place, mod::GradientSums& sums, int first_q, int first_kv) {
    const int top = first_q + Scores::first_row(), bottom = top + 16 * Scores::kSlabs - 1;
    const int left = first_kv + Scores::first_column(), right = left + 16 * Scores::kUnits - 1;
    constexpr bool kMaskIsBand = !mod::kHasMask || (mod::kHasBand && mod::kBandIsExact);
    if (kMaskIsBand && bottom < attention.q_len && right < attention.kv_len &&
        (!mod::kHasMask || place.band_holds(top, bottom, left, right)))
        differentiate<true>(products, d_weights, rows, attention, arguments, place, sums, first_kv);
    else
        differentiate<false>(products, d_weights, rows, attention, arguments, place, sums,
                             first_kv);
}
