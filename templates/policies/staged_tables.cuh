// Tables whose slices of a head Hopper's forward copies to shared memory: sm90/forward_tables.cuh.
#pragma once

namespace defaults {

struct StagedTables {
    static constexpr int kCount = 0;
    static constexpr bool kHaveRoom = true;    // whatever the tensors
    static constexpr bool kAreChecked = false; // some index is looked at for a tile
    // Tiles of keys are aligned with what tables are read by: sm90/aligned_tables.cuh.
    static constexpr bool kAreAligned = false;
    // Of aligned tables: mod::element_addend has the units of what slices have.
    static constexpr bool kAddendScales = false;
    // An element uses what it reads under conditions alone; those of keys hold from this one on.
    static constexpr bool kHaveConditions = false;
    static constexpr int kKeysHoldFrom = -2147483647 - 1;
    template <typename At> static __device__ bool query_uses(const At&) { return true; }
    template <typename At> static __device__ bool key_uses(const At&) { return true; }
    // What reads them may take int(log(x) * c) for a neighbour, and says so in *At::doubt.
    static constexpr bool kLogsAreGuessed = false;
    // Products are added to mod::element_addend, which needs nothing else.
    static constexpr bool kComeFirst = false;
};

// Each of them; templates/README.md has its members.
template <int kTable> struct StagedTable;

// Functions of an element that read them there: where the tile's indices are known to be inside;
// the same, where conditions may fail; with a look at each index; and without guesses.
template <typename At> __device__ float staged_element_addend(const At&, float bias);
template <typename At> __device__ float conditional_element_addend(const At&, float bias);
template <typename At> __device__ float checked_element_addend(const At&, float bias);
template <typename At> __device__ float exact_element_addend(const At&, float bias);
template <typename At> __device__ float staged_score(const At&, float score);
template <typename At> __device__ float checked_score(const At&, float score);

} // namespace defaults
