// What the mask is known to hide of a tile of scores.
#pragma once

#include "common/place.cuh"
#include "common/select.h"

struct NoMask {
    static constexpr bool kHides = false, kIsComparison = true;
    // Whether it is known that nothing of a rectangle is hidden, whose positions are first to last.
    // is_full: what the block mask says of its tile.
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
// A band says all about it, so that an element needs no more than a comparison.
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
