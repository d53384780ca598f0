// From scores to the gradient of scores, element by element: the same for every backward kernel.
#pragma once

#include "common/math.cuh"
#include "common/place.cuh"
#include "common/row_lse.cuh"
#include "sm80/arguments.h"
#include "sm80/backward_mma.cuh"

// What a thread knows about one of its rows of a tile of scores.
struct ScoreRow {
    mod::Row value;
    int q; // as the program sees it; rows past the end repeat the last
    bool inside;
    float reference_score,
        lse_log2; // lse and 0, where lse is enough: see row_references.cuh, sink.cuh
    float delta;  // sum over d of d_out * o, less d_lse
};

// A tile of scores: its first positions, where load_row_sums put lse and delta of its rows, the
// distance between the two, and whether the block mask says that nothing is hidden.
struct ScoreTile {
    int first_q, first_kv;
    unsigned row_sums;
    int to_delta;
    bool is_full = false;
};

// Everything around an element, for short.
struct Surroundings {
    const AttentionArguments& attention;
    const mod::Arguments& arguments;
    const HeadPlace& place;
};

// lse and delta of rows first_q + [0, kCount) start on their way to shared memory, lse first. Rows
// past the end become zeros.
template <int kThreads, int kCount>
__device__ inline void load_row_sums(unsigned to, const sm80::KernelArguments& attention, int b,
                                     int h, int first_q) {
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

__device__ inline ScoreRow read_row(const Surroundings& around, const ScoreTile& tile, int row) {
    const auto& [attention, arguments, place] = around;
    const int position = tile.first_q + row;
    const int q = min(position, attention.q_len - 1) + static_cast<int>(attention.q_offset);
    const float lse = sm80::load_shared_float(tile.row_sums + 4 * row);
    // Nothing is visible in the row: an infinite lse makes every P zero.
    float reference_score = lse == negative_infinity() ? -lse : lse, lse_log2 = 0;
    if (mod::kHasSink || is_large_lse(lse)) {
        const long long head = static_cast<long long>(place.b) * attention.heads + place.h;
        const long long of_all = head * attention.fact_rows + position;
        reference_score = attention.row_facts[row_fact_place(of_all, kReferenceFact)] *
                          (mod::kHasScoreMod ? 1 : attention.scale);
        lse_log2 = attention.row_facts[row_fact_place(of_all, kLseLog2Fact)];
    }
    return {mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q),
            q,
            position < attention.q_len,
            reference_score,
            lse_log2,
            sm80::load_shared_float(tile.row_sums + tile.to_delta + 4 * row)};
}

struct ScoreColumn {
    mod::Column value;
    int kv;
    bool inside;
};
template <bool kAll>
__device__ inline ScoreColumn read_column(const Surroundings& around, const ScoreTile& tile,
                                          int column) {
    const auto& [attention, arguments, place] = around;
    const int position = tile.first_kv + column;
    const int kv = (kAll ? position : min(position, attention.kv_len - 1)) +
                   static_cast<int>(attention.kv_offset);
    return {mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv),
            kv, kAll || position < attention.kv_len};
}

__device__ inline float p_of(float score, const ScoreRow& row) {
    return exp2_fast((score - row.reference_score) * kLog2E - row.lse_log2);
}

__device__ inline bool is_visible(const Surroundings& around, const ScoreRow& row,
                                  const ScoreColumn& column) {
    const auto& [attention, arguments, place] = around;
    bool visible = column.inside && row.inside;
    if constexpr (mod::kHasMask)
        visible =
            visible && mod::visible({arguments, place.launch, place.head, row.value, column.value,
                                     place.b, place.h, place.h_kv, row.q, column.kv});
    return visible;
}

// A bit for each of a thread's columns, for each of its rows.
template <typename Scores> struct Visible {
    static constexpr int kColumns = 2 * Scores::kColumns;
    static_assert(kColumns <= 32);
    unsigned columns[Scores::kRows];
};

// One column at a time: a mask that is evaluated for all of them at once fills the registers.
template <typename Scores>
__device__ inline Visible<Scores> look(const Surroundings& around, const ScoreTile& tile) {
    Visible<Scores> visible = {};
    ScoreRow rows[Scores::kRows];
#pragma unroll
    for (int i = 0; i < Scores::kRows; ++i)
        rows[i] = read_row(around, tile, Scores::row(i));
#pragma unroll 1
    for (int i = 0; i < Visible<Scores>::kColumns; ++i) {
        const ScoreColumn column = read_column<false>(around, tile, Scores::column(i / 2) + i % 2);
#pragma unroll
        for (int row = 0; row < Scores::kRows; ++row)
            visible.columns[row] |= static_cast<unsigned>(is_visible(around, rows[row], column))
                                    << i;
    }
    return visible;
}

// The same value. Where registers are shortest, what an element's reads need is found by itself,
// not for all elements at once.
__device__ inline int found_again(int x) {
    if constexpr (mod::kSavesRegisters > 2) asm volatile("" : "+r"(x) : : "memory");
    return x;
}

// product (q k') becomes the weight, P; dp (d_out v') becomes the gradient with respect to
// the score before the mod, dS. What is hidden becomes zero by selection, so that nothing that a
// mod gives there matters.
__device__ inline void differentiate(float& product, float& dp, bool visible,
                                     const Surroundings& around, const ScoreRow& row,
                                     const ScoreColumn& column, mod::GradientSums& sums) {
    const auto& [attention, arguments, place] = around;
    const mod::At at{arguments,
                     place.launch,
                     place.head,
                     row.value,
                     column.value,
                     found_again(place.b),
                     found_again(place.h),
                     place.h_kv,
                     found_again(row.q),
                     column.kv};
    mod::Joint joint{product * attention.scale, 1, {}};
    if constexpr (mod::kHasScoreMod) {
        joint = mod::joint(at, joint.score);
        visible = visible && joint.score != negative_infinity();
    }
    const float p = p_of(joint.score, row);
    const float d_modified = p * (dp - row.delta);
    if constexpr (mod::kAddsGradients) {
        if (visible) {
            mod::sum_gradients(at, joint, d_modified, sums);
            mod::add_gradients(at, joint, d_modified);
        }
    }
    product = visible ? p : 0;
    dp = visible ? d_modified * joint.d_score : 0;
}

// Whether the band says all about the mask.
constexpr bool kMaskIsBand = !mod::kHasMask || (mod::kHasBand && mod::kBandIsExact);

// Whether a mod has values that belong to a column alone.
constexpr bool kHasColumnValues = !__is_empty(mod::Column);

// The same for all elements of this warp; kAll: all of them are visible. What a mod computes for a
// column lives as long as the column; if there is nothing, it is rows that come and go.
template <bool kAll, typename Scores>
__device__ void differentiate_all(Scores& products, Scores& dp, const Surroundings& around,
                                  const ScoreTile& tile, mod::GradientSums& sums) {
    const auto visit = [&](int row, int column, bool visible, const ScoreRow& row_facts,
                           const ScoreColumn& column_facts) {
        differentiate(products.at(row, column / 2, column % 2), dp.at(row, column / 2, column % 2),
                      visible, around, row_facts, column_facts, sums);
    };
    const auto row_at = [&](int i) { return read_row(around, tile, Scores::row(i)); };
    const auto column_at = [&](int i) {
        return read_column<kAll>(around, tile, Scores::column(i / 2) + i % 2);
    };
    if constexpr (kHasColumnValues) {
        ScoreRow rows[Scores::kRows];
#pragma unroll
        for (int row = 0; row < Scores::kRows; ++row)
            rows[row] = row_at(row);
#pragma unroll
        for (int i = 0; i < 2 * Scores::kColumns; ++i) {
            const ScoreColumn column = column_at(i);
#pragma unroll
            for (int row = 0; row < Scores::kRows; ++row)
                visit(row, i, kAll || is_visible(around, rows[row], column), rows[row], column);
        }
    } else {
        // What a band leaves over is a comparison, and needs no registers.
        constexpr bool kLooks = !kAll && !kMaskIsBand;
        Visible<Scores> visible;
        if constexpr (kLooks) visible = look<Scores>(around, tile);
#pragma unroll
        for (int i = 0; i < Scores::kRows; ++i) {
            const ScoreRow row = row_at(i);
#pragma unroll
            for (int column = 0; column < Visible<Scores>::kColumns; ++column) {
                const ScoreColumn facts = column_at(column);
                bool sees = true;
                if constexpr (kLooks)
                    sees = (visible.columns[i] >> column & 1) != 0;
                else if constexpr (!kAll)
                    sees = is_visible(around, row, facts);
                visit(i, column, sees, row, facts);
            }
        }
    }
}

// Picks the form that this warp's rectangle of the tile needs.
template <typename Scores>
__device__ inline void differentiate_tile(Scores& products, Scores& dp, const Surroundings& around,
                                          ScoreTile tile, mod::GradientSums& sums) {
    tile.first_kv = sm80::computed_again(tile.first_kv);
    const int top = tile.first_q + Scores::first_row(), bottom = top + 16 * Scores::kSlabs - 1;
    const int left = tile.first_kv + Scores::first_column(), right = left + 16 * Scores::kUnits - 1;
    const bool shows_all = !mod::kHasMask || tile.is_full ||
                           (kMaskIsBand && around.place.band_holds(top, bottom, left, right));
    if (shows_all && bottom < around.attention.q_len && right < around.attention.kv_len)
        differentiate_all<true>(products, dp, around, tile, sums);
    else
        differentiate_all<false>(products, dp, around, tile, sums);
}
