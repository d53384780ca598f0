// A choice of how Hopper's forward computes a request, and what the kernel does with the terms of
// the score mod then.
#pragma once

#include <string>

#include "passes/decompose.h"
#include "plan/kernel.h"
#include "plan/kernel_request.h"

namespace flexc::plan::sm90 {

// How a kernel handles the reads of a score mod: by which decomposition (Decomposition::Of); for
// the plain one, also whether TMA loads keys and values or threads copy them.
enum class Reads : std::uint8_t {
    plain,
    plain_with_copied_keys,
    by_index_2d,
    by_kinds,
    with_aligned_tables,
    with_tables,
    with_shifts
};

// Consumer warpgroups of a block: so many for many short sequences alone.
constexpr int kMostWarpgroups = 4;

// A kernel for a request: how its blocks divide their work, and how it handles reads.
struct Choice {
    const KernelRequest& request;
    ForwardSchedule shape;
    Reads reads;
};

// What a kernel that handles reads so is left with: of ScoreTerms, those of its decomposition.
struct ReadTerms {
    Decomposition decomposition;
    int bias_bytes = 0; // of an element of the dense bias that is copied by tiles; 0 for none
    passes::TabulatedValues tabulated;
    // What comes with the products where accumulators start with what elements add.
    passes::BesideElements beside = {};
    ElementSums sums = {}; // of the terms that elements compute
    int score_instructions = 0;
};
ReadTerms terms_of(const KernelRequest& request, Reads reads);

inline bool stages_tables(Reads reads) {
    return reads == Reads::with_tables || reads == Reads::with_aligned_tables;
}

// Returns why threads copy keys and values; empty if TMA loads them. Whatever else is staged needs
// the same threads, or TMA.
std::string why_copied(const KernelRequest& request);
bool has_wide_heads(const KernelRequest& request);

// Where the addends of a score come from: products (MMAs add them), the start of accumulators, or
// values that are staged in shared memory for elements to read.

// Whether MMAs add the addends by row of the 2-D key index together with the products. Tiles must
// be single rows, so that an infinite addend is not multiplied by 0, and the type must have the
// range of floats (bf16).
bool multiplies_index_2d_rows(const Choice& choice);
// Whether MMAs add what is added by key together with the products. Those of wide heads take so
// long that nothing is gained where elements add nothing, and tiles would be shorter.
bool multiplies_key_addend(const KernelRequest& request, Reads reads);
// Whether the loop over keys is that of no score mod: products bring all that is added but for
// rows, whose addends are offsets of exponents.
bool adds_keys_alone(const KernelRequest& request, Reads reads);
// Whether keys are visited from the largest addend down. A block mask has an order of its own, and
// a request's keys must start with the tile in which they end.
bool starts_at_highest(const KernelRequest& request, Reads reads);
// Whether MMAs add what grows from key to key together with the products.
bool multiplies_slope(const KernelRequest& request, Reads reads);
// Whether accumulators start with a function of the distance. Reading it takes shared memory longer
// than pairs for elements do, which is less than what elements save where products are short.
bool starts_with_distances(const KernelRequest& request, Reads reads);
bool starts_with_tables(const KernelRequest& request, Reads reads);
// Returns the tabulated values that are staged for elements to read.
passes::TabulatedValues staged_values(const KernelRequest& request, Reads reads);
// Whether addends are computed for a few of a thread's elements at a time: if unrolled code would
// contain many reads, none of which is loaded for neighbouring elements together. With wide
// outputs, only if there is a copied bias; otherwise the generic kernel is faster.
bool computes_in_parts(const KernelRequest& request, Reads reads);

// Whether the first of a row's tiles of keys has no code of its own: where elements compute much,
// that code takes as long to compile as the loop over the others.
bool visits_first_in_loop(const Choice& choice);

// Sums that are computed for some elements at once.
ElementSums sums_of(const KernelRequest& request, Reads reads);

// Returns the columns that so many kinds take. A step of the MMAs has two columns for each of eight
// kinds, or one for each of sixteen.
int kind_columns(int kinds);
// Returns why the product QK does not include a program's kinds of keys; empty if it does, provided
// that tiles have room.
std::string why_no_kinds(const KernelRequest& request);

// Returns the number of keys from a tile's first key to the next tile's; 0 if tiles of this size
// are not aligned with tables.
int aligned_step(const KernelRequest& request, const ForwardSchedule& shape);

} // namespace flexc::plan::sm90
