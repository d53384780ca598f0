#include "cpu/backend/request_key_tile.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "cpu/backend/avx2.h"
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

bool KeyTile::may_use_matrix_unit(std::int64_t rows) const {
    return shape_.dtype == DType::bf16 && may_be_skinny(rows) && amx::suits(shape_, in_);
}

void KeyTile::multiply_in_memory(const Block& block, int rows, Range columns) const {
    const int dim = shape_.head_dim;
    if (block.is_packed)
        amx::multiply_by_keys(rows, dim, block.packed_q, list_rows(columns, in_.k), block.scores,
                              kKeyTile);
    else
        keys_of_.visit_memory(columns, kv_head_, in_.k, in_.k_scale,
                              [&](const MemoryRows& keys, std::int64_t column) {
                                  multiply_by_keys(shape_.kv_dtype, rows, dim, block.q, keys,
                                                   block.scores + column, kKeyTile);
                              });
}

void KeyTile::add_values_in_memory(const Block& block, int rows, Range columns) {
    const int dim = shape_.head_dim_v;
    float* const output = block.output;
    if (!block.started) std::fill_n(output, rows * dim, 0.0f);
    std::copy_n(output, rows * dim, scratch_.output);
    if (block.is_packed)
        amx::add_weighted_values(rows, dim, block.scores, kKeyTile, list_rows(columns, in_.v),
                                 scratch_.output);
    else
        keys_of_.visit_memory(columns, kv_head_, in_.v, in_.v_scale,
                              [&](const MemoryRows& values, std::int64_t column) {
                                  add_weighted_values(shape_.kv_dtype, rows, dim,
                                                      block.scores + column, kKeyTile, values,
                                                      scratch_.output);
                              });
    // Hidden elements have weight 0, which makes NaN of values that are not finite.
    if (all_finite(scratch_.output, rows * dim))
        std::copy_n(scratch_.output, rows * dim, output);
    else
        add_wide_values(block, rows, columns.begin % kKeyTile,
                        static_cast<int>(round_up(columns.end - columns.begin, kColumnUnit)));
}

void KeyTile::multiply(Block& block, int rows, std::int64_t first, int width) {
    load_keys();
    const int dim = shape_.head_dim, stride = static_cast<int>(kKeyTile);
    const DType dtype = shape_.kv_dtype;
    const float* keys = packed_keys_.data;
    if (uses_tiles_) {
        if ((block.is_finite && packed_keys_.magnitude.is_finite) || !amx::needs_finite(dtype)) {
            if (!block.has_tile_q) queries_of_.pack(block, scratch_.offsets);
            return amx::multiply_by_keys({dtype, dim, rows, width, first, kKeyTile}, block.tile_q,
                                         amx::bits(packed_keys_.data), block.scores, kKeyTile);
        }
        queries_of_.widen(block);
        keys_of_.widen_keys(keys_, kv_head_, scratch_.wide);
        keys = scratch_.wide;
    }
    cpu::multiply({rows, width, dim, dim, stride, stride}, block.q, keys + first, block.scores);
}

void KeyTile::add_values(const Block& block, int rows, std::int64_t first, int width) {
    load_values();
    if (!uses_tiles_ || !packed_values_.magnitude.is_finite)
        return add_wide_values(block, rows, first, width);
    amx::pack_weights(rows, width, block.scores, kKeyTile);
    amx::add_weighted_values({shape_.kv_dtype, shape_.head_dim_v, rows, width, first, kKeyTile},
                             block.scores, kKeyTile, amx::bits(packed_values_.data), block.output,
                             block.started);
}

void KeyTile::add_wide_values(const Block& block, int rows, std::int64_t first, int width) {
    load_values();
    const int dim = shape_.head_dim_v;
    if (uses_tiles_) keys_of_.widen_values(keys_, kv_head_, scratch_.wide);
    const float* const values = uses_tiles_ ? scratch_.wide : packed_values_.data;
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

// The whole tile is loaded, for all blocks: for the matrix unit, or in f32.
void KeyTile::load_keys() {
    if (std::exchange(has_keys_, true)) return;
    packed_keys_ = tiles_.keys().find(number(), scratch_.keys, [&](float* to) {
        return uses_tiles_ ? amx::pack_keys(shape_.kv_dtype, list_rows(keys_, in_.k),
                                            shape_.head_dim, kKeyTile, amx::bits(to))
                           : keys_of_.widen_keys(keys_, kv_head_, to);
    });
}

void KeyTile::load_values() {
    if (std::exchange(has_values_, true)) return;
    packed_values_ = tiles_.values().find(number(), scratch_.values, [&](float* to) {
        return uses_tiles_ ? amx::pack_values(shape_.kv_dtype, list_rows(keys_, in_.v),
                                              shape_.head_dim_v, kKeyTile, amx::bits(to))
                           : keys_of_.widen_values(keys_, kv_head_, to);
    });
}

} // namespace flexc::cpu::requests
