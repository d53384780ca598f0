// What a kernel before Hopper's forward or backward computes of keys alone, or of distances q - kv
// alone: vectors with an entry for each.
#pragma once

namespace defaults {

struct TabulatedVectors {
    static constexpr int kByKey = 0, kByDistance = 0; // how many there are
    // A second copy lacks its first entry, for pairs of entries that begin at odd ones.
    static constexpr int kDistanceCopies = 1;
    static constexpr int kTileOverhang = 0; // rows that a tile may have past the end
    static constexpr bool kUseBatch = true, kUseHead = true; // else one vector is for all
    template <typename At> static __device__ float key_value(const At&, int) { return 0; }
    template <typename At> static __device__ float distance_value(const At&, int) { return 0; }
};

} // namespace defaults
