// The threads that stage what is added for rows of keys as a grid: one number for each query and
// row of the grid that a tile of keys has.
#pragma once

#include "common/tile_walk.cuh"
#include "sm90/forward_tasks.cuh"

namespace sm90 {

// One thread's queries of a tile, from `first` on every kGridThreads-th: what depends on them alone
// is found once for all tiles of keys.
struct GridQueries {
    static constexpr int kCount = mod::kQueryTile / kGridThreads;
    int q[kCount];
    mod::Row row[kCount];

    __device__ GridQueries(const AttentionArguments& attention, const mod::Arguments& arguments,
                           const HeadPlace& place, int first) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            q[i] = min(first + i * kGridThreads, attention.q_len - 1) +
                   static_cast<int>(attention.q_offset);
            row[i] = mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv,
                                 q[i]);
        }
    }
    // What is added for the rows of the grid from a key on: by row, then by query, from `to` in
    // shared memory, which is free after wait().
    template <typename Wait>
    __device__ void store(const AttentionArguments& attention, const mod::Arguments& arguments,
                          const HeadPlace& place, int first_key, unsigned to, Wait wait) const {
        // As many rows are read before that.
        constexpr int kAhead = kGridRows == 0 ? 1 : kGridRows < 4 ? kGridRows : 4;
#pragma unroll 1
        for (int first = 0; first < kGridRows; first += kAhead) {
            const auto is_there = [&](int i) {
                return kGridRows % kAhead == 0 || first + i < kGridRows;
            };
            float addends[kAhead][kCount];
#pragma unroll
            for (int i = 0; i < kAhead; ++i)
                if (is_there(i))
                    find(attention, arguments, place, first_key + (first + i) * mod::kKeyWidth,
                         addends[i]);
            wait();
#pragma unroll
            for (int i = 0; i < kAhead; ++i)
#pragma unroll
                for (int k = 0; k < kCount; ++k)
                    if (is_there(i))
                        store_shared_word(
                            to + 4 * ((first + i) * mod::kQueryTile + k * kGridThreads),
                            __float_as_uint(addends[i][k]));
        }
    }

  private:
    // For the row of the grid that this key is in.
    __device__ void find(const AttentionArguments& attention, const mod::Arguments& arguments,
                         const HeadPlace& place, int key, float (&addends)[kCount]) const {
        const int kv = min(key, attention.kv_len - 1) + static_cast<int>(attention.kv_offset);
        const mod::Column column =
            mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv);
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            addends[i] = mod::quotient_addend({arguments, place.launch, place.head, row[i], column,
                                               place.b, place.h, place.h_kv, q[i], kv});
    }
};

__device__ inline void produce_grid_rows(const AttentionArguments& attention,
                                         const mod::Arguments& arguments, const Shared& shared,
                                         int thread) {
    Position<GridRows> position;
    visit_tasks(attention, arguments, shared, [&](const Task& task, const HeadPlace& place) {
        const GridQueries queries(attention, arguments, place, task.first_row + thread);
        const auto stage_rows = [&](int block) {
            queries.store(attention, arguments, place, block * mod::kKeyTile,
                          shared.grid_rows.at(position.stage) + 4 * thread, [&] {
                              shared.grid_rows.empty(position.stage).wait(position.parity ^ 1);
                          });
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
    });
}

} // namespace sm90
