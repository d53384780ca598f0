// Policies of gradients in the generic backward whose elements along a line of a tile add to one
// place: those of reads by the query alone, or by the key alone, and elements of shifted reads
// beyond a clamp, are summed along a row, or a column, before memory is touched.
#pragma once

namespace defaults {

struct NoLineGradients {
    static constexpr int kCount = 0;
    // Adds an element's terms to the sums of its line, kCount numbers.
    template <typename Joint> static __device__ void sum(const Joint&, float, float*) {}
    // The same of elements at the ends of clamps, each of which has one of these sums.
    template <typename At, typename Joint>
    static __device__ void sum_ends(const At&, const Joint&, float, float*) {}
    // Adds the sums of a line to the gradients in memory. An index outside its buffer adds nothing.
    template <typename At> static __device__ void flush(const At&, const float*) {}
};
struct RowGradients : NoLineGradients {};
struct ColumnGradients : NoLineGradients {};

} // namespace defaults
