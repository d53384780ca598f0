// Sums of a running softmax, by vectors of the processor's width.
#pragma once

#include <cstdint>

namespace flexc::cpu {

// Multiplies row i of sums[rows][dim], taken relative to an older maximum, by factors[i].
void rescale(std::int64_t rows, int dim, const float* factors, float* sums);

// Makes row i the mean of its values: multiplies it by factors[i] and divides it by weights[i].
void divide(std::int64_t rows, int dim, const float* factors, const float* weights, float* sums);

} // namespace flexc::cpu
