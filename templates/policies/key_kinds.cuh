// Policy of keys of few kinds: what is added to a score is one number for a query and a kind. In
// Hopper's forward it comes with the products of QK, or these are added to it: sm90/key_kinds.cuh.
// Or pairs of a query and a key are of few kinds, and what is added is one number for a head and a
// kind: sm90/pair_kinds.cuh.
#pragma once

namespace defaults {

struct KeyKinds {
    static constexpr int kCount = 0; // kinds are 0 ... kCount - 1
    // Whether kinds of pairs depend on the batch entry. They do not depend on the head.
    static constexpr bool kPairsUseBatch = true;
    // Whether heads of a batch entry see the same range of keys, so that pairs outside need no
    // kind.
    static constexpr bool kHeadsSeeAlike = false;
    // Returns the kind of a key, or -1 if nothing is added to its scores. Uses the query for pairs
    // alone.
    template <typename At> static __device__ int kind(const At&) { return -1; }
    // Returns what is added for a query and a kind, which at.kv holds.
    template <typename At> static __device__ float addend(const At&) { return 0; }
};

} // namespace defaults
