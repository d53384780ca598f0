// Policy of vectors that a kernel computes before Hopper's forward or backward, with an entry for
// each key or for each distance q - kv, on which alone the values depend.
#pragma once

namespace defaults {

struct TabulatedVectors {
    static constexpr int kByKey = 0, kByDistance = 0; // how many there are
    // The first by key is an operand of products (sm90/key_addend.cuh), not a vector of floats.
    static constexpr bool kMultipliesFirst = false;
    // The first of these are operands of products with as many numbers of the row.
    static constexpr int kRowFactors = 0;
    // With 2, a second copy lacks the first entry, so that pairs of entries that begin at odd ones
    // are aligned in it.
    static constexpr int kDistanceCopies = 1;
    // Products are added to the only vector by distance. Its values are in units of products, and
    // its entries, in the order of keys, are the numbers that four accumulators start with.
    static constexpr bool kDistancesComeFirst = false;
    static constexpr int kTileOverhang = 0; // rows that a tile may have past the end
    static constexpr bool kUseBatch = true, kUseHead = true; // false: one vector for all
    template <typename At> static __device__ float key_value(const At&, int) { return 0; }
    template <typename At> static __device__ float row_factor(const At&, int) { return 0; }
    template <typename At> static __device__ float distance_value(const At&, int) { return 0; }
};

} // namespace defaults
