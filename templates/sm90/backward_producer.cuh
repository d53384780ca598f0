// The producer's warpgroup: one thread loads tiles; a warp computes what is the same for a query.
#pragma once

#include "common/dependence.cuh"
#include "sm90/backward_dense_bias.cuh"
#include "sm90/backward_heads.cuh"
#include "sm90/backward_index_2d_tables.cuh"
#include "sm90/backward_key_tiles.cuh"
#include "sm90/backward_query_tiles.cuh"
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

// Keys of a tile, and values.
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

// The index of a tile that no block of a persistent kernel has taken.
__device__ inline int take_tile(const KernelArguments& attention) {
    return static_cast<int>(gridDim.x) + atomicAdd(attention.tiles_taken, 1);
}
// The index-th tile, or where there is none the next that there is.
__device__ inline KeyTile tile_from(const KernelArguments& attention,
                                    const mod::Arguments& arguments, int index, int count) {
    KeyTile keys =
        index < count ? KeyTileOrder::tile(attention, arguments, index) : KeyTile::none();
    if constexpr (mod::kKeysAreRagged)
#pragma unroll 1
        while (keys.is_none() && index < count) {
            wait_for_kernel_ahead();
            index = take_tile(attention);
            if (index < count) keys = KeyTileOrder::tile(attention, arguments, index);
        }
    return keys;
}

// Where the kernel is persistent, by a thread of its own: one tile of keys after another, told to
// all.
__device__ inline void load_key_tiles(const KernelArguments& attention,
                                      const mod::Arguments& arguments,
                                      const BackwardTensorMaps& maps, Shared shared) {
    const int count = KeyTileOrder::count(attention);
    int index = static_cast<int>(blockIdx.x);
#pragma unroll 1
    for (unsigned tiles = 0;; ++tiles) {
        const int slot = static_cast<int>(tiles % kKeySlots);
        const KeyTile keys = tile_from(attention, arguments, index, count);
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

// Keys and values once, unless another thread does; queries with their facts, and
// d_out, for every tile. By one thread, or where reads are staged by its whole warp.
__device__ inline void load_tiles(const AttentionArguments& attention,
                                  const mod::Arguments& arguments, const BackwardTensorMaps& maps,
                                  Shared shared, const KeyTile& keys, int& step) {
    const PaddedRows rows(attention, keys.length(attention));
    const bool loads = !kStagesIndex2d || threadIdx.x % 32 == 0;
    // While a block mask says whether there is anything to load.
    if (mod::kHasBlockMask && !mod::kPersistent && loads) {
        const Corner key{keys.entry(attention), keys.h_kv, keys.first_row(attention), 0};
        prefetch_panels<kPanels>(maps.k, key);
        prefetch_panels<kValuePanels>(maps.v, key);
    }
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        TileLength length = keys.length(attention, place);
        const long long sums = rows.first(place);
        Index2dTables tables(attention, keys.first_kv);
#pragma unroll 1
        for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done();
             walk.advance(), ++step) {
            const int stage = step % 2;
            const unsigned parity = step / 2 % 2 ^ 1;
            const int tile_query = walk.tile() * mod::kQueryTile;
            const Corner query{length.entry(), place.h,
                               static_cast<int>(length.first_query_row()) + tile_query, 0};
            if (!mod::kPersistent && step == 0 && loads)
                load_keys(attention, maps, shared, keys, 0);
            const Barrier queries = shared.queries_full(stage);
            const auto load = [&] {
                shared.queries_empty(stage).wait(parity);
                if (loads) {
                    if constexpr (mod::kHasBlockMask)
                        MaskTile{walk.tile(), walk.is_full()}.store(shared.mask_tile(stage));
                    queries.arrive_expecting(kPanels * kQueryPanel + kFactBytes);
                    load_panels(shared.base + kLayout.queries + stage * kPanels * kQueryPanel,
                                kQueryPanel, kPanels, maps.q, query, queries);
                }
                if (step == 0 && loads) {
                    if constexpr (!mod::kPersistent) load_values(attention, maps, shared, keys);
                    wait_for_kernel_ahead();
                }
                if (loads) {
                    load_bytes(shared.base + kLayout.facts + stage * kFactBytes,
                               attention.row_facts + (sums + tile_query) * kRowFacts, kFactBytes,
                               queries);
                }
                shared.d_out_empty(stage).wait(parity);
                const Barrier d_out = shared.d_out_full(stage);
                if (loads) {
                    d_out.arrive_expecting(kValuePanels * kQueryPanel);
                    load_panels(shared.base + kLayout.d_out + stage * kValuePanels * kQueryPanel,
                                kQueryPanel, kValuePanels, maps.d_out, query, d_out);
                }
            };
            if constexpr (kStagesIndex2d) {
                Index2dTables::Rows values;
                if (tables.is_inside()) tables.read(values, tile_query);
                load();
                if (!tables.is_known()) {
                    tables.find(arguments, place);
                    if (tables.is_inside()) tables.read(values, tile_query);
                }
                __syncwarp();
                const unsigned memory = shared.index_2d(stage);
                if (tables.is_inside())
                    tables.fill(values, tile_query, memory, queries);
                else
                    Index2dStage{attention, arguments, place, tile_query, keys.first_kv, memory}
                        .fill(queries);
            } else {
                load();
            }
        }
    });
}

__device__ inline void load_queries(const AttentionArguments& attention,
                                    const mod::Arguments& arguments, const BackwardTensorMaps& maps,
                                    Shared shared, const KeyTile& only) {
    int step = 0;
    KeyTiles::visit_beside<false>(shared, only, [&](const KeyTile& keys, unsigned) {
        load_tiles(attention, arguments, maps, shared, keys, step);
        if constexpr (mod::kPersistent) shared.queries_end().arrive();
    });
}

// Values that the program computes for each of a tile's queries, by one warp, where registers are
// short: eight bytes of a row at a time, so that parts share no registers. Short tiles are
// unrolled, which saves the loop counter.
__device__ inline void stage_rows_in_parts(const AttentionArguments& attention,
                                           const mod::Arguments& arguments, const KeyTile& keys,
                                           const HeadPlace& place, int first_row, int step) {
    constexpr int kRowBytes = sizeof(mod::Row);
    constexpr int kUnrolled = mod::kQueryTile == 64 ? 2 : 1;
#pragma unroll kUnrolled
    for (int first = 0; first < mod::kQueryTile; first += 32)
#pragma unroll
        for (int byte = 0; byte < kRowBytes; byte += 8) {
            read_again(arguments);
            TileLength length = keys.length(attention);
            const int q =
                min(first_row + first + lane_again(), computed_again(length.queries()) - 1) +
                static_cast<int>(length.q_offset());
            const mod::Row row = mod::at_row(arguments, mod::at_launch(arguments), place.head,
                                             keys.b, place.h, keys.h_kv, q);
            mod::Row& staged = Shared::rows(computed_again(step) % 2)[first + lane_again()];
            memcpy(reinterpret_cast<char*>(&staged) + byte,
                   reinterpret_cast<const char*>(&row) + byte, min(kRowBytes - byte, 8));
        }
}

// By one warp, beside the queries: what the program computes for each, and tiles of biases.
__device__ inline void stage_values(const AttentionArguments& attention,
                                    const mod::Arguments& arguments, Shared shared,
                                    const KeyTile& only) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    int step = 0;
    KeyTiles::visit_beside<true>(shared, only, [&](const KeyTile& keys, unsigned) {
        visit_heads<Select<kSaves.beside, CountsAgain, HeadLoop>>(
            attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
                const auto biases = BiasRows<const mod::BiasElement>::of(
                    attention, arguments, place, keys.first_kv,
                    [](const mod::At& at) { return mod::bias_address(at); });
#pragma unroll 1
                for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done();
                     walk.advance(), ++step) {
                    const int first_row = walk.tile() * mod::kQueryTile;
                    if constexpr (kStagesRows) {
                        const int stage = step % 2;
                        shared.queries_empty(stage).wait(step / 2 % 2 ^ 1);
                        const auto stage_row = [&](int i, const mod::Launch& launch) {
                            const int q = keys.length(attention).q_idx(first_row + i);
                            Shared::rows(stage)[i] = mod::at_row(arguments, launch, place.head,
                                                                 place.b, place.h, place.h_kv, q);
                        };
                        // Long rows are computed one by one, to save registers.
                        if constexpr (kSaves.beside)
                            stage_rows_in_parts(attention, arguments, keys, place, first_row, step);
                        else if constexpr (kMaskIsLong && sizeof(mod::Row) > sizeof(int))
#pragma unroll 1
                            for (int i = lane; i < mod::kQueryTile; i += 32) {
                                read_again(arguments);
                                stage_row(i, mod::at_launch(arguments));
                            }
                        else
#pragma unroll
                            for (int i = lane; i < mod::kQueryTile; i += 32)
                                stage_row(i, place.launch);
                        // Every lane arrives for the rows that it has written.
                        shared.queries_full(kSaves.beside ? computed_again(step) % 2 : stage)
                            .arrive();
                    }
                    CopiedBias::copy(attention, shared, biases, first_row, keys.first_kv, step);
                }
            });
    });
}

} // namespace sm90
