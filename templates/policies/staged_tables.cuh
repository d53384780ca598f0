// Policy of tables whose slices of a head Hopper's forward copies to shared memory:
// sm90/forward_tables.cuh.
#pragma once

namespace defaults {

struct StagedTables {
    static constexpr int kCount = 0;
    static constexpr bool kHaveRoom = true;    // slices fit, whatever the tensors' sizes
    static constexpr bool kAreChecked = false; // something is checked for each tile
    // Whether addresses are split for this query, and for this key: others have another address,
    // which elements compute where each index is checked.
    template <typename At> static __device__ bool query_is_split(const At&) { return true; }
    template <typename At> static __device__ bool key_is_split(const At&) { return true; }
    // Tiles of keys are aligned with what tables are read by: sm90/aligned_tables.cuh.
    static constexpr bool kAreAligned = false;
    // Whether mod::element_addend scales with the entries of its tables, so that slices may hold
    // these in other units.
    static constexpr bool kAddendScales = false;
    // Whether an element uses what it reads only under conditions. Those on keys hold from key
    // kKeysHoldFrom on.
    static constexpr bool kHaveConditions = false;
    static constexpr int kKeysHoldFrom = -2147483647 - 1;
    template <typename At> static __device__ bool query_uses(const At&) { return true; }
    template <typename At> static __device__ bool key_uses(const At&) { return true; }
    // Whether a read may mistake int(log(x) * c) for its neighbour; it reports this in *At::doubt.
    static constexpr bool kLogsAreGuessed = false;
    // Whether products are added to mod::element_addend, which needs nothing else.
    static constexpr bool kComeFirst = false;
};

// Specialised by mod.cuh for each of the kCount tables; templates/README.md has the members.
template <int kTable> struct StagedTable;

// Functions of an element that read tables in shared memory, for tiles whose indices are known to
// be inside (staged); the same, where conditions may fail (conditional); with a check of each index
// (checked); and without guesses (exact).
template <typename At> __device__ float staged_element_addend(const At&, float bias);
template <typename At> __device__ float conditional_element_addend(const At&, float bias);
template <typename At> __device__ float checked_element_addend(const At&, float bias);
template <typename At> __device__ float exact_element_addend(const At&, float bias);
template <typename At> __device__ float staged_score(const At&, float score);
template <typename At> __device__ float checked_score(const At&, float score);

} // namespace defaults
