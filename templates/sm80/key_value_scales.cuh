// Scales of keys and values of eight bits: one for a head, or one for each entry, which is loaded
// into shared memory with keys and values. Scores and weights are multiplied by them instead, and
// scores also by the factor with which queries became f16.
#pragma once

#include "common/math.cuh"
#include "common/select.h"
#include "sm80/forward_tiles.cuh"
#include "sm80/narrow_queries.cuh"

namespace sm80 {

// Keys and values in the type of queries have no scales.
struct NoScales {
    __device__ NoScales(const AttentionArguments&, const SequenceLength&, int h_kv) {}
    __device__ void apply_to_queries(QueryTile, int first_row, bool stores = true) {}
    __device__ void apply_to_scores(Scores&, const Shared&, int step) const {}
    __device__ void apply_to_weights(Scores&, Output&, const Shared&, int step) const {}
    __device__ float of_output() const { return 1; }
};

class NarrowScales {
  public:
    __device__ NarrowScales(const AttentionArguments& attention, const SequenceLength& length,
                            int h_kv)
        : entries_have_key_scales_(kEntriesHaveScales && attention.k_scale.stride_b != 0),
          entries_have_value_scales_(kEntriesHaveScales && attention.v_scale.stride_b != 0) {
        const int b = mod::Layouts::Keys::kAreInOrder ? length.b() : 0;
        const float key = entries_have_key_scales_ ? 1 : attention.k_scale.of(b, h_kv);
#pragma unroll
        for (float& factor : of_row_)
            factor = key;
        value_ = entries_have_value_scales_ ? 0 : attention.v_scale.of(b, h_kv);
    }

    // Converts the queries in shared memory to operands. Called before the first scores. stores:
    // true in one of the warps that have the same rows.
    __device__ void apply_to_queries(QueryTile queries, int first_row, bool stores = true) {
        make_operands(queries, first_row, stores, of_row_);
    }

    // Multiplies products by the scales of keys. step: that of their tile.
    __device__ void apply_to_scores(Scores& scores, const Shared& shared, int step) const {
        if (entries_have_key_scales_) {
            multiply_columns(scores, shared.key_scales(step), of_row_);
            return;
        }
#pragma unroll
        for (int column = 0; column < 2 * kKeyColumns; ++column)
#pragma unroll
            for (int row = 0; row < kRows; ++row)
                element_of(scores, row, column) *= of_row_[row];
    }

    // Multiplies weights by their values' scale over the largest scale so far, so that 16 bits hold
    // them. If the largest scale grows, the output shrinks with it.
    __device__ void apply_to_weights(Scores& weights, Output& output, const Shared& shared,
                                     int step) {
        if (!entries_have_value_scales_) return;
        constexpr float kLeast = 0x1p-126f; // whose reciprocal is finite
        const float before = value_;
        value_ = quad_max(largest_of_columns(shared.value_scales(step), before));
        const float reciprocal = value_ >= kLeast ? reciprocal_fast(value_) : 0;
        float of_weights[kRows];
#pragma unroll
        for (float& factor : of_weights)
            factor = reciprocal;
        multiply_columns(weights, shared.value_scales(step), of_weights);
        if (value_ == before) return;
        const float shrink = before * reciprocal;
#pragma unroll
        for (int fragment = 0; fragment < kRowFragments; ++fragment)
#pragma unroll
            for (int column = 0; column < kValueColumns; ++column)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    output[fragment][column][i] *= shrink;
    }

    __device__ float of_output() const { return value_; }

  private:
    // Returns the address of the scales of two neighbours among a thread's columns.
    static __device__ unsigned place_of(unsigned scales, int fragment) {
        return scales + 4 * (8 * fragment + lane_index() % 4 * 2);
    }
    static __device__ void multiply_columns(Scores& scores, unsigned of_columns,
                                            const float (&of_rows)[kRows]) {
#pragma unroll
        for (int fragment = 0; fragment < kKeyColumns; ++fragment) {
            float scale[2];
            load_shared(scale[0], scale[1], place_of(of_columns, fragment));
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int row = 0; row < kRows; ++row)
                    element_of(scores, row, 2 * fragment + i) *= scale[i] * of_rows[row];
        }
    }
    static __device__ float largest_of_columns(unsigned of_columns, float largest) {
#pragma unroll
        for (int fragment = 0; fragment < kKeyColumns; ++fragment) {
            float x, y;
            load_shared(x, y, place_of(of_columns, fragment));
            largest = fmaxf(largest, fmaxf(fabsf(x), fabsf(y)));
        }
        return largest;
    }

    const bool entries_have_key_scales_, entries_have_value_scales_; // uniform
    float of_row_[kRows];                                            // factor of a row's products
    float value_; // scale of values; of entries, the largest magnitude so far
};

using KeyValueScales = Select<kKeysAreNarrow, NarrowScales, NoScales>;

} // namespace sm80
