// Products of a few rows with bf16 keys or values as they lie in the caller's memory, by the matrix
// unit of a processor (AMX). Sums are of exact products, in f32.
#pragma once

#include <cstdint>

#include "cpu/backend/row_list.h"

namespace flexc::cpu::amx {

// Room for the queries of `rows` rows, in elements.
constexpr std::int64_t query_room(std::int64_t rows, int dim) {
    return (rows <= 4 ? 4 : (rows + 15) / 16 * 16) * dim;
}

// Packs queries[rows][dim], which are bf16 numbers, for multiply_by_keys().
void pack_queries(int rows, int dim, const float* queries, std::uint16_t* packed);

// scores[row][j] = sum over d of queries[row][d] * keys[j][d]. scores[rows][stride].
void multiply_by_keys(int rows, int dim, const std::uint16_t* queries, const RowList& keys,
                      float* scores, std::int64_t stride);

// out[row][d] += sum over j of weights[row][j] * values[j][d], by 16 bits of weights. weights[rows]
// [stride], out[rows][dim]. A weight or a value that is not finite may give NaN.
void add_weighted_values(int rows, int dim, const float* weights, std::int64_t stride,
                         const RowList& values, float* out);

} // namespace flexc::cpu::amx
