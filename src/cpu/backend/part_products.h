// Products of matrices of packed bf16 numbers, by each unit that has them.
#pragma once

#include <cstdint>

namespace flexc::cpu::parts {

// One side of a product, in numbers. stride: on the left from row to row; on the right from 16
// columns to the next, and `inner` from 32 inner ones to the next. part: from one part to the next.
struct Factor {
    const std::uint16_t* data;
    std::int64_t stride, inner, part;
};

// out[rows][columns] (+)= left right. Numbers of rows are multiples of kTileUnit; those of columns
// and inner ones are too for AMX, and multiples of 16 for dot products.
struct Product {
    std::int64_t rows, columns, inner;
    Factor left, right;
    float* out;
    std::int64_t out_stride;
    bool accumulate;
};

} // namespace flexc::cpu::parts

namespace flexc::cpu::amx {
// Of numbers of one part.
void multiply(const parts::Product& product);
// Of numbers of two parts; the second one without the product of both second parts.
void multiply_two_parts(const parts::Product& product);
void multiply_upper_parts(const parts::Product& product);
} // namespace flexc::cpu::amx

namespace flexc::cpu::dots {
// Whether the processor has an instruction for dot products of bf16, as fast as one that multiplies
// half as many floats, and rows have a length that fits.
bool suits(int dim);
// Of numbers of one part.
void multiply(const parts::Product& product);
} // namespace flexc::cpu::dots
