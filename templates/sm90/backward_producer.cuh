// The producer warpgroup: one thread loads tiles of queries; a warp computes what the program
// computes once for a query.
#pragma once

#include "common/dependence.cuh"
#include "sm90/backward_beside_queries.cuh"
#include "sm90/backward_dense_bias.cuh"
#include "sm90/backward_heads.cuh"
#include "sm90/backward_key_loads.cuh"
#include "sm90/backward_query_tiles.cuh"
#include "sm90/backward_row_stages.cuh"

namespace sm90 {

// Called by one thread, or where values are staged beside queries by its whole warp: loads queries
// with their statistics and d_out for every tile, and keys and values once, unless another thread
// does.
__device__ inline void load_tiles(const AttentionArguments& attention,
                                  const mod::Arguments& arguments, const BackwardTensorMaps& maps,
                                  Shared shared, const KeyTile& keys, int& step) {
    const PaddedRows rows(attention, keys.length(attention));
    const bool loads = BesideQueries::loads();
    if (loads) KeysBesideQueries::prefetch(attention, maps, keys);
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        TileLength length = keys.length(attention, place);
        const long long sums = rows.first(place);
        BesideQueries beside(attention, arguments, keys, place);
#pragma unroll 1
        for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done();
             walk.advance(), ++step) {
            const int stage = step % 2;
            const unsigned parity = step / 2 % 2 ^ 1;
            const int tile_query = walk.tile() * mod::kQueryTile;
            const Corner query{length.entry(), place.h,
                               static_cast<int>(length.first_query_row()) + tile_query, 0};
            if (step == 0 && loads) KeysBesideQueries::load_ahead(attention, maps, shared, keys);
            const Barrier queries = shared.queries_full(stage);
            BesideQueries::Values values;
            beside.read(values, tile_query);
            shared.queries_empty(stage).wait(parity);
            if (loads) {
                StageTile::announce(shared, stage, walk);
                queries.arrive_expecting(kPanels * kQueryPanel + kStatisticBytes);
                load_panels(shared.base + kLayout.queries + stage * kPanels * kQueryPanel,
                            kQueryPanel, kPanels, maps.q, query, queries);
            }
            if (step == 0 && loads) {
                KeysBesideQueries::load_behind(attention, maps, shared, keys);
                wait_for_kernel_ahead();
            }
            if (loads) {
                load_bytes(shared.base + kLayout.statistics + stage * kStatisticBytes,
                           attention.row_statistics + (sums + tile_query) * kRowStatistics,
                           kStatisticBytes, queries);
            }
            shared.d_out_empty(stage).wait(parity);
            const Barrier d_out = shared.d_out_full(stage);
            if (loads) {
                d_out.arrive_expecting(kValuePanels * kQueryPanel);
                load_panels(shared.base + kLayout.d_out + stage * kValuePanels * kQueryPanel,
                            kQueryPanel, kValuePanels, maps.d_out, query, d_out);
            }
            beside.fill(values, shared, tile_query, step, queries);
        }
    });
}

__device__ inline void load_queries(const AttentionArguments& attention,
                                    const mod::Arguments& arguments, const BackwardTensorMaps& maps,
                                    Shared shared, const KeyTile& only) {
    int step = 0;
    KeyTiles::visit_beside<false>(shared, only, [&](const KeyTile& keys, unsigned) {
        load_tiles(attention, arguments, maps, shared, keys, step);
        KeysBesideQueries::end_queries(shared);
    });
}

// Called by one warp: stages, beside the queries, what the program computes for each of them, and
// tiles of biases.
__device__ inline void stage_values(const AttentionArguments& attention,
                                    const mod::Arguments& arguments, Shared shared,
                                    const KeyTile& only) {
    int step = 0;
    KeyTiles::visit_beside<true>(shared, only, [&](const KeyTile& keys, unsigned) {
        visit_heads<Select<kSaves.beside, CountsAgain, HeadLoop>>(
            attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
                const CopiedBias::Source biases(attention, arguments, place, keys.first_kv);
#pragma unroll 1
                for (QueryTiles walk(attention, place, keys, tiles); !walk.is_done();
                     walk.advance(), ++step) {
                    const int first_row = walk.tile() * mod::kQueryTile;
                    StagedRowTiles::fill(shared,
                                         {attention, arguments, keys, place, first_row, step});
                    CopiedBias::copy(attention, shared, biases, first_row, keys.first_kv, step);
                }
            });
    });
}

} // namespace sm90
