// What is known about the mask in a whole rectangle of scores.
#pragma once

#include "common/place.cuh"
#include "common/select.h"

struct NoMask {
    static constexpr bool kHides = false, kIsComparison = true;
    // Whether nothing in the rectangle [first_q, last_q] x [first_kv, last_kv] is hidden, as far as
    // is known. is_full: whether the block mask says so of the tile.
    static __device__ bool shows_all(const HeadPlace&, bool is_full, int first_q, int last_q,
                                     int first_kv, int last_kv) {
        return true;
    }
};
struct MaskOfElements : NoMask {
    static constexpr bool kHides = true, kIsComparison = false;
    static __device__ bool shows_all(const HeadPlace&, bool is_full, int first_q, int last_q,
                                     int first_kv, int last_kv) {
        return is_full;
    }
};
// The band is the whole mask, so that an element only needs a comparison.
struct MaskOfBand : MaskOfElements {
    static constexpr bool kIsComparison = true;
    static __device__ bool shows_all(const HeadPlace& place, bool is_full, int first_q, int last_q,
                                     int first_kv, int last_kv) {
        return is_full || place.band_holds(first_q, last_q, first_kv, last_kv);
    }
};
using Mask =
    Select<!mod::Mask::kExists, NoMask,
           Select<mod::Mask::kHasBand && mod::Mask::kBandIsExact, MaskOfBand, MaskOfElements>>;
