// The thread that loads: queries, keys and values of one tile after another, keys last first.
#pragma once

#include "common/place.cuh"
#include "sm90/distance.cuh"
#include "sm90/forward_layout.cuh"
#include "sm90/schedule.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// announce(stage) says what comes, when the stage is free.
template <typename S, typename Announce>
__device__ inline void load_stage(const S& stages, Position<S>& position, const TensorMap& map,
                                  Corner from, int panel_bytes, int panel_count,
                                  Announce announce) {
    stages.empty(position.stage).wait(position.parity ^ 1);
    announce(position.stage);
    const Barrier full = stages.full(position.stage);
    full.arrive_expecting(panel_count * panel_bytes);
#pragma unroll
    for (int panel = 0; panel < panel_count; ++panel) {
        load_box(stages.at(position.stage) + panel * panel_bytes, map, from, full);
        from.column += kPanelColumns;
    }
    position.advance();
}

// Slices of the vectors that were expanded, for a tile of keys.
__device__ inline void load_terms(const AttentionArguments& attention, const Task& task, int tile,
                                  const TermSlices& slices, Position<TermSlices>& position) {
    slices.empty(position.stage).wait(position.parity ^ 1);
    const Barrier full = slices.full(position.stage);
    constexpr int kBytes = 4 * kTileDistances;
    full.arrive_expecting(mod::kKeyValues * kKeySliceBytes +
                          mod::kDistanceValues * mod::kDistanceCopies * kBytes);
    const int head = vector_head(attention, task.b, task.h), key = tile * mod::kKeyTile;
    unsigned to = slices.at(position.stage);
#pragma unroll
    for (int i = 0; i < mod::kKeyValues; ++i) {
        load_bytes(to, key_vector(attention, head, i) + key, kKeySliceBytes, full);
        to += kKeySliceBytes;
    }
    const int first = padded(attention.kv_len) + task.first_row - key - mod::kKeyTile;
#pragma unroll
    for (int i = 0; i < mod::kDistanceValues; ++i) {
#pragma unroll
        for (int copy = 0; copy < mod::kDistanceCopies; ++copy)
            load_bytes(to + 4 * copy * kTwinDistances,
                       distance_vector(attention, head, mod::kDistanceCopies * i + copy) + first,
                       kBytes, full);
        to += kDistanceSliceBytes;
    }
    position.advance();
}

__device__ inline Task task_of(const Tile& tile, const AttentionArguments& attention,
                               const mod::Arguments& arguments) {
    const HeadPlace place(attention, arguments, tile.head);
    if constexpr (mod::kHasMap) {
        const long long row =
            rows_before(attention.map, place.b, place.h) + tile.first_row / mod::kQueryTile;
        return {place.b,        place.h,    place.h_kv,
                tile.first_row, 0,          attention.map.rows[row].count,
                place.low,      place.high, tile.end_row};
    }
    const TileRange range = tiles_between(place.keys_of(tile.first_row, tile.end_row - 1),
                                          attention.kv_len, mod::kKeyTile);
    return {place.b,   place.h,   place.h_kv, tile.first_row, range.begin,
            range.end, place.low, place.high, tile.end_row};
}

__device__ inline void produce(const AttentionArguments& attention, const mod::Arguments& arguments,
                               const ForwardMaps& maps, int* queue, const Shared& shared) {
    Position<Queries> query;
    Position<Keys> key;
    Position<Values> value;
    Position<TermSlices> term;
    prefetch(maps.q);
    prefetch(maps.k);
    prefetch(maps.v);
    prefetch(maps.o);
    const auto announce = [&](const Task& task) {
        shared.queries.empty(query.stage).wait(query.parity ^ 1);
        task.store(shared.task(query.stage));
    };
    const Schedule schedule(attention);
    const Turnstile turnstile(queue);
#pragma unroll 1
    for (int index = blockIdx.x; index < schedule.tiles();) {
        const int next = turnstile.after(index);
        const Task task = task_of(schedule.tile(index), attention, arguments);
        Corner at{task.b, task.h_kv, 0, 0};
        const auto nothing = [](int) {};
        const auto load_key = [&](MappedTile block) {
            at.row = block.index * mod::kKeyTile;
            load_stage(shared.keys, key, maps.k, at, kKeyPanel, kPanels, [&](int stage) {
                if constexpr (mod::kHasMap) block.store(shared.key_block(stage));
            });
            if constexpr (kHasTerms) load_terms(attention, task, block.index, shared.terms, term);
        };
        const auto load_value = [&](int tile) {
            at.row = tile * mod::kKeyTile;
            load_stage(shared.values, value, maps.v, at, kKeyPanel, kValuePanels, nothing);
        };
        const auto load_query = [&] {
            announce(task);
            load_stage(shared.queries, query, maps.q, {task.b, task.h, task.first_row, 0},
                       kQueryPanel, kPanels, nothing);
        };
        // Values arrive one step after their keys, as they are used.
        if constexpr (mod::kHasMap) {
            TileWalk walk(attention.map, task.b, task.h, task.first_row / mod::kQueryTile, {0, 0});
            if (!walk.is_done()) load_key({walk.tile(), walk.is_full()});
            load_query();
#pragma unroll 1
            while (!walk.is_done()) {
                const int tile = walk.tile();
                walk.advance();
                if (!walk.is_done()) load_key({walk.tile(), walk.is_full()});
                load_value(tile);
            }
        } else {
            if (task.begin < task.end) load_key({task.end - 1, false});
            load_query();
#pragma unroll 1
            for (int block = task.end - 1; block >= task.begin; --block) {
                if (block > task.begin) load_key({block - 1, false});
                load_value(block);
            }
        }
        index = next;
    }
    announce(Task::none());
    shared.queries.full(query.stage).arrive();
    turnstile.leave();
}

} // namespace sm90
