// The threads that stage what is added for rows of keys as a grid: one number for each query and
// row of the grid that a tile of keys has.
#pragma once

#include "common/place.cuh"
#include "common/tile_walk.cuh"
#include "sm90/forward_layout.cuh"

namespace sm90 {

// Of one thread among kGridThreads. By row of the grid, then by query.
__device__ inline void store_grid_rows(const AttentionArguments& attention,
                                       const mod::Arguments& arguments, const HeadPlace& place,
                                       int first_row, int first_key, unsigned to, int thread) {
#pragma unroll 3
    for (int i = thread; i < mod::kQueryTile * kGridRows; i += kGridThreads) {
        const int row_of_grid = i / mod::kQueryTile, query = i % mod::kQueryTile;
        const float addend =
            visit_element(attention, arguments, place, min(first_row + query, attention.q_len - 1),
                          min(first_key + row_of_grid * mod::kKeyWidth, attention.kv_len - 1),
                          [](const mod::At& at) { return mod::quotient_addend(at); });
        store_shared_word(to + 4 * i, __float_as_uint(addend));
    }
}

__device__ inline void produce_grid_rows(const AttentionArguments& attention,
                                         const mod::Arguments& arguments, const Shared& shared,
                                         int thread) {
    Position<Queries> query;
    Position<GridRows> position;
#pragma unroll 1
    while (true) {
        shared.queries.full(query.stage).wait(query.parity);
        const Task task = Task::load(shared.task(query.stage));
        if (task.is_none()) break;
        shared.queries.empty(query.stage).arrive();
        query.advance();
        const HeadPlace place(attention, arguments, task.b, task.h, task.h_kv, task.low, task.high);
        const auto stage_rows = [&](int block) {
            shared.grid_rows.empty(position.stage).wait(position.parity ^ 1);
            store_grid_rows(attention, arguments, place, task.first_row, block * mod::kKeyTile,
                            shared.grid_rows.at(position.stage), thread);
            shared.grid_rows.full(position.stage).arrive();
            position.advance();
        };
        if constexpr (mod::kHasMap) {
#pragma unroll 1
            for (TileWalk walk(attention.map, task.b, task.h, task.first_row / mod::kQueryTile,
                               {0, 0});
                 !walk.is_done(); walk.advance())
                stage_rows(walk.tile());
        } else {
#pragma unroll 1
            for (int block = task.end - 1; block >= task.begin; --block)
                stage_rows(block);
        }
    }
}

} // namespace sm90
