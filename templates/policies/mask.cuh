// Policy of the mask: which elements are visible.
#pragma once

namespace defaults {

struct Mask {
    static constexpr bool kExists = false;  // false: every element is visible
    static constexpr bool kHasBand = false; // every visible one has band.low <= kv - q <= band.high
    static constexpr bool kBandIsExact = false; // every element of the band is visible
    static constexpr bool kBandHasLow = false;  // band.low bounds anything
    static constexpr int kClamps = 0; // which members of Clamps bound the ends of the band, as bits
    // AttentionArguments::block_mask says which tiles to visit.
    static constexpr bool kHasBlockMask = false;
    static constexpr int kParts = 0; // number of MaskPart: parts of the mask beside the band
    static constexpr bool kReadsElements = false; // the mask reads memory for each element
};

struct Band {
    long long low, high;
};
template <typename Arguments, typename Launch, typename Head>
__device__ Band band(const Arguments&, const Launch&, const Head&, int b, int h, int h_kv) {
    return {-(1ll << 62), 1ll << 62};
}

// With clamps (prefixes, padding) the band is exact, and query q sees the keys from
// min(first_most, max(first_least, q + band.low)) to min(last_most, max(last_least, q + band.high))
// if it is one of least_query ... most_query.
struct Clamps {
    long long first_least, first_most, last_least, last_most;
    long long least_query, most_query;
};
template <typename Arguments, typename Launch, typename Head>
__device__ Clamps clamps(const Arguments&, const Launch&, const Head&, int b, int h, int h_kv) {
    return {0, 0, 0, 0, 0, 0};
}

template <typename At> __device__ bool visible(const At&) { return true; }
template <int kIndex> struct MaskPart;

} // namespace defaults
