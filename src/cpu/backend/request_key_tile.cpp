#include "cpu/backend/request_key_tile.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "cpu/backend/amx.h"
#include "cpu/backend/avx2.h"
#include "cpu/backend/flush_denormals.h"
#include "cpu/backend/tiles.h"

namespace flexc::cpu::requests {

namespace {

// A loop without branches, of which the compiler makes vectors of the caller's instruction set.
__attribute__((always_inline)) inline bool are_finite(const float* values, std::int64_t count) {
    std::uint32_t overflow = 0; // of exponents that are all ones
    for (std::int64_t i = 0; i < count; ++i)
        overflow |= (std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu) + 0x00800000u;
    return overflow >> 31 == 0;
}
#if defined(__x86_64__)
FLEXC_AVX2 bool are_finite_by_avx2(const float* values, std::int64_t count) {
    return are_finite(values, count);
}
#endif
bool all_finite(const float* values, std::int64_t count) {
#if defined(__x86_64__)
    if (has_avx2()) return are_finite_by_avx2(values, count);
#endif
    return are_finite(values, count);
}

} // namespace

void KeyTile::move_to(Range keys) {
    keys_ = keys;
    has_keys_ = has_values_ = has_key_rows_ = false;
    kv_head_ = -1;
}

void KeyTile::move_to_head(int kv_head) {
    if (kv_head != std::exchange(kv_head_, kv_head)) has_keys_ = has_values_ = false;
}

bool KeyTile::keys_are_moderate() {
    load_keys();
    return packed_keys_.magnitude.is_moderate;
}

const std::int64_t* KeyTile::key_rows() {
    if (!std::exchange(has_key_rows_, true) && shape_.reads_key_rows)
        keys_of_.find_rows(keys_, scratch_.key_rows);
    return scratch_.key_rows;
}

bool KeyTile::may_be_skinny(std::int64_t rows) const {
    return !has_keys_ && rows <= kSkinnyRows && in_.k.stride_d == 1 && in_.v.stride_d == 1 &&
           has_skinny_products(shape_.head_dim) && has_skinny_products(shape_.head_dim_v);
}

FewRowsBy KeyTile::few_rows_by(std::int64_t rows) const {
    if (shape_.dtype != DType::bf16 || shape_.kv_dtype != DType::bf16 || !may_be_skinny(rows))
        return FewRowsBy::floats;
    if (parts::may_round_weights(in_) && amx::suits(shape_.head_dim) &&
        amx::suits(shape_.head_dim_v))
        return FewRowsBy::matrix_unit;
    return has_bf16_products(shape_.head_dim) ? FewRowsBy::bf16 : FewRowsBy::floats;
}

bool KeyTile::joins_heads() const {
    return order(shape_.head_dim).keys_at_once > 0 && order(shape_.head_dim_v).keys_at_once > 0 &&
           in_.k.stride_h < in_.k.stride_s && in_.v.stride_h < in_.v.stride_s;
}

template <typename Visit>
void KeyTile::visit_few_rows(std::span<const FewRows> all, const ReadingOrder& order,
                             const Visit& visit) {
    const bool is_joined = all.size() > 1;
    const std::int64_t keys = is_joined ? order.keys_at_once : kKeyTile;
    const std::int64_t ahead = is_joined ? order.keys_at_once : order.rows_ahead;
    for (std::int64_t key = keys_.begin; key < keys_.end; key += keys)
        for (const FewRows& few : all) {
            const Range part{std::max(few.columns.begin, key),
                             std::min(few.columns.end, key + keys)};
            if (part.empty()) continue;
            move_to_head(few.block->head / (in_.heads / in_.kv_heads));
            visit(few, part, ahead);
        }
}

void KeyTile::multiply_in_memory(std::span<const FewRows> all) {
    const int dim = shape_.head_dim;
    const FewRows& first = all.front();
    if (first.block->few_rows_by == FewRowsBy::matrix_unit)
        return amx::multiply_by_keys(first.rows, dim, first.block->packed_q,
                                     list_rows(first.columns, in_.k), first.block->scores,
                                     kKeyTile);
    const FlushDenormals flush;
    visit_few_rows(all, order(dim), [&](const FewRows& few, Range part, std::int64_t ahead) {
        const Block& block = *few.block;
        keys_of_.visit_memory(part, kv_head_, in_.k, in_.k_scale, ahead,
                              [&](const MemoryRows& keys, std::int64_t key) {
                                  float* const scores = block.scores + key - few.columns.begin;
                                  if (block.few_rows_by == FewRowsBy::bf16)
                                      multiply_bf16_by_keys(few.rows, dim, block.packed_q, keys,
                                                            scores, kKeyTile);
                                  else
                                      multiply_by_keys(shape_.kv_dtype, few.rows, dim, block.q,
                                                       keys, scores, kKeyTile);
                              });
    });
}

void KeyTile::add_values_in_memory(std::span<const FewRows> all) {
    const int dim = shape_.head_dim_v;
    for (const FewRows& few : all) {
        if (!few.block->started) std::fill_n(few.block->output, few.rows * dim, 0.0f);
        std::copy_n(few.block->output, few.rows * dim, few.block->new_output);
    }
    const FewRows& first = all.front();
    if (first.block->few_rows_by == FewRowsBy::matrix_unit) {
        amx::add_weighted_values(first.rows, dim, first.block->scores, kKeyTile,
                                 list_rows(first.columns, in_.v), first.block->new_output);
    } else {
        const FlushDenormals flush;
        for (const FewRows& few : all)
            if (rounds_weights(few.rows))
                round_weights(few.rows, round_up(few.columns.end - few.columns.begin, kColumnUnit),
                              few.block->scores, kKeyTile, few.block->rounded_weights);
        const ReadingOrder reading =
            rounds_weights(first.rows) ? bf16_reading_order(dim) : order(dim);
        visit_few_rows(all, reading, [&](const FewRows& few, Range part, std::int64_t ahead) {
            const Block& block = *few.block;
            keys_of_.visit_memory(
                part, kv_head_, in_.v, in_.v_scale, ahead,
                [&](const MemoryRows& values, std::int64_t key) {
                    const std::int64_t column = key - few.columns.begin;
                    if (rounds_weights(few.rows))
                        add_bf16_weighted_values(few.rows, dim, block.rounded_weights + column,
                                                 kKeyTile, values, block.new_output);
                    else
                        add_weighted_values(shape_.kv_dtype, few.rows, dim, block.scores + column,
                                            kKeyTile, values, block.new_output);
                });
        });
    }
    for (const FewRows& few : all) {
        // Hidden elements have weight 0, which makes NaN of values that are not finite.
        if (all_finite(few.block->new_output, few.rows * dim)) {
            std::copy_n(few.block->new_output, few.rows * dim, few.block->output);
            continue;
        }
        move_to_head(few.block->head / (in_.heads / in_.kv_heads));
        const Range& columns = few.columns;
        add_wide_values(*few.block, few.rows, columns.begin % kKeyTile,
                        static_cast<int>(round_up(columns.end - columns.begin, kColumnUnit)));
    }
}

void KeyTile::multiply(Block& block, int rows, std::int64_t first, int width) {
    load_keys();
    const int dim = shape_.head_dim, stride = static_cast<int>(kKeyTile);
    const DType dtype = shape_.kv_dtype;
    const float* keys = packed_keys_.data;
    if (has_parts()) {
        if ((block.is_finite && packed_keys_.magnitude.is_finite) || !parts::needs_finite(dtype)) {
            if (!block.has_tile_q) queries_of_.pack(block, scratch_.offsets);
            return parts::multiply_by_keys(product(dim, rows, first, width), block.tile_q,
                                           parts::bits(packed_keys_.data), block.scores, kKeyTile);
        }
        queries_of_.widen(block);
        keys_of_.widen_keys(keys_, kv_head_, scratch_.wide);
        keys = scratch_.wide;
    }
    cpu::multiply({rows, width, dim, dim, stride, stride}, block.q, keys + first, block.scores);
}

void KeyTile::add_values(const Block& block, int rows, std::int64_t first, int width) {
    load_values();
    if (!has_parts() || !packed_values_.magnitude.is_finite)
        return add_wide_values(block, rows, first, width);
    parts::pack_weights(shape_.kv_dtype, rows, width, block.scores, kKeyTile);
    parts::add_weighted_values(product(shape_.head_dim_v, rows, first, width), block.scores,
                               kKeyTile, parts::bits(packed_values_.data), block.output,
                               block.started);
}

void KeyTile::add_wide_values(const Block& block, int rows, std::int64_t first, int width) {
    load_values();
    const int dim = shape_.head_dim_v;
    if (has_parts()) keys_of_.widen_values(keys_, kv_head_, scratch_.wide);
    const float* const values = has_parts() ? scratch_.wide : packed_values_.data;
    const Product product{.rows = rows,
                          .columns = dim,
                          .inner = width,
                          .left_stride = static_cast<int>(kKeyTile),
                          .right_stride = dim,
                          .out_stride = dim,
                          .accumulate = block.started};
    (packed_values_.magnitude.is_finite ? cpu::multiply : multiply_skipping_zeros)(
        product, block.scores, values + first * dim, block.output);
}

// The whole tile is loaded, for all blocks: as parts, or in f32.
void KeyTile::load_keys() {
    if (std::exchange(has_keys_, true)) return;
    packed_keys_ = tiles_.keys().find(number(), scratch_.keys, [&](float* to) {
        return has_parts() ? parts::pack_keys(shape_.kv_dtype, list_rows(keys_, in_.k),
                                              shape_.head_dim, kKeyTile, parts::bits(to))
                           : keys_of_.widen_keys(keys_, kv_head_, to);
    });
}

void KeyTile::load_values() {
    if (std::exchange(has_values_, true)) return;
    packed_values_ = tiles_.values().find(number(), scratch_.values, [&](float* to) {
        return has_parts() ? parts::pack_values(shape_.kv_dtype, list_rows(keys_, in_.v),
                                                shape_.head_dim_v, kKeyTile, parts::bits(to))
                           : keys_of_.widen_values(keys_, kv_head_, to);
    });
}

} // namespace flexc::cpu::requests
