// Loads tiles of keys and values to shared memory; which thread does so depends on the kernel.
#pragma once

#include "common/dependence.cuh"
#include "common/select.h"
#include "sm90/backward_key_tiles.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

__device__ inline void load_panels(unsigned to, int panel_bytes, int panel_count,
                                   const TensorMap& map, Corner from, Barrier arrival,
                                   int panel_columns = kPanelColumns) {
#pragma unroll
    for (int panel = 0; panel < panel_count; ++panel) {
        load_box(to + place_of_panel(panel, panel_count) * panel_bytes, map, from, arrival);
        from.column += panel_columns;
    }
}

template <int kPanelCount>
__device__ inline void prefetch_panels(const TensorMap& map, Corner from) {
#pragma unroll
    for (int panel = 0; panel < kPanelCount; ++panel, from.column += kPanelColumns)
        prefetch_box(map, from);
}

// Load the keys of a tile, or its values.
__device__ inline void load_keys(const AttentionArguments& attention,
                                 const BackwardTensorMaps& maps, Shared shared, const KeyTile& keys,
                                 int slot) {
    shared.keys(slot).arrive_expecting(kPanels * kKeyPanel);
    load_panels(shared.base + kLayout.keys + Shared::slot_offset(slot), kKeyPanel, kPanels, maps.k,
                {keys.entry(attention), keys.h_kv, keys.first_row(attention), 0}, shared.keys(slot),
                kKeyPanelColumns);
}
__device__ inline void load_values(const AttentionArguments& attention,
                                   const BackwardTensorMaps& maps, Shared shared,
                                   const KeyTile& keys) {
    shared.values().arrive_expecting(kValuePanels * kKeyPanel);
    load_panels(shared.base + kLayout.values, kKeyPanel, kValuePanels, maps.v,
                {keys.entry(attention), keys.h_kv, keys.first_row(attention), 0}, shared.values());
}

// Takes a tile that no block of a persistent kernel has taken yet, and returns its index.
__device__ inline int take_tile(const KernelArguments& attention) {
    return static_cast<int>(gridDim.x) + atomicAdd(attention.tiles_taken, 1);
}
// Returns the index-th tile of a persistent kernel, none after the last; each index has a tile.
struct EveryTile {
    static __device__ KeyTile from(const KernelArguments& attention,
                                   const mod::Arguments& arguments, int index, int count) {
        return index < count ? KeyTileOrder::tile(attention, arguments, index) : KeyTile::none();
    }
};
// The same for ragged keys: if the index has no tile, takes the next index that has one.
struct TilesOfPlaces {
    static __device__ KeyTile from(const KernelArguments& attention,
                                   const mod::Arguments& arguments, int index, int count) {
        KeyTile keys = EveryTile::from(attention, arguments, index, count);
#pragma unroll 1
        while (keys.is_none() && index < count) {
            wait_for_kernel_ahead();
            index = take_tile(attention);
            if (index < count) keys = KeyTileOrder::tile(attention, arguments, index);
        }
        return keys;
    }
};
using PersistentTiles = Select<mod::Layouts::kKeysAreRagged, TilesOfPlaces, EveryTile>;

// Where the kernel is persistent, a thread of its own takes one tile of keys after another, loads
// it, and tells all other threads which it is.
__device__ inline void load_key_tiles(const KernelArguments& attention,
                                      const mod::Arguments& arguments,
                                      const BackwardTensorMaps& maps, Shared shared) {
    const int count = KeyTileOrder::count(attention);
    int index = static_cast<int>(blockIdx.x);
#pragma unroll 1
    for (unsigned tiles = 0;; ++tiles) {
        const int slot = static_cast<int>(tiles % kKeySlots);
        const KeyTile keys = PersistentTiles::from(attention, arguments, index, count);
        shared.keys_empty(slot).wait(tiles / kKeySlots % 2 ^ 1);
        keys.store(shared.key_tile(slot));
        if (keys.is_none()) {
            shared.keys(slot).arrive();
            return;
        }
        load_keys(attention, maps, shared, keys, slot);
        prefetch_panels<kValuePanels>(
            maps.v, {keys.entry(attention), keys.h_kv, keys.first_row(attention), 0});
        shared.values_empty().wait(tiles % 2 ^ 1);
        load_values(attention, maps, shared, keys);
        if (tiles == 0) wait_for_kernel_ahead();
        // Not earlier: a tile that is taken too soon would wait here while other blocks are idle.
        shared.queries_end().wait(tiles % 2);
        index = take_tile(attention);
    }
}

// Prefetches keys and values to the L2 cache while the block mask is read, which says whether there
// is anything to load.
struct PrefetchesKeys {
    static __device__ void prefetch(const AttentionArguments& attention,
                                    const BackwardTensorMaps& maps, const KeyTile& keys) {
        const Corner key{keys.entry(attention), keys.h_kv, keys.first_row(attention), 0};
        prefetch_panels<kPanels>(maps.k, key);
        prefetch_panels<kValuePanels>(maps.v, key);
    }
};
struct LoadsAtOnce {
    static __device__ void prefetch(const AttentionArguments&, const BackwardTensorMaps&,
                                    const KeyTile&) {}
};
using EarlyKeys = Select<mod::Mask::kHasBlockMask, PrefetchesKeys, LoadsAtOnce>;

// Where a block has one tile of keys, the thread that loads queries loads keys before the first
// queries and values after them.
struct LoadsOwnKeys : EarlyKeys {
    static __device__ void load_ahead(const AttentionArguments& attention,
                                      const BackwardTensorMaps& maps, Shared shared,
                                      const KeyTile& keys) {
        load_keys(attention, maps, shared, keys, 0);
    }
    static __device__ void load_behind(const AttentionArguments& attention,
                                       const BackwardTensorMaps& maps, Shared shared,
                                       const KeyTile& keys) {
        load_values(attention, maps, shared, keys);
    }
    // Called when all queries of a tile of keys have been requested.
    static __device__ void end_queries(const Shared&) {}
};
// In a persistent kernel, load_key_tiles() loads keys and values.
struct LeavesKeys {
    static __device__ void prefetch(const AttentionArguments&, const BackwardTensorMaps&,
                                    const KeyTile&) {}
    static __device__ void load_ahead(const AttentionArguments&, const BackwardTensorMaps&, Shared,
                                      const KeyTile&) {}
    static __device__ void load_behind(const AttentionArguments&, const BackwardTensorMaps&, Shared,
                                       const KeyTile&) {}
    static __device__ void end_queries(const Shared& shared) { shared.queries_end().arrive(); }
};
using KeysBesideQueries = Select<mod::kPersistent, LeavesKeys, LoadsOwnKeys>;

} // namespace sm90
