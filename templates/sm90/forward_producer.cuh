// The producer thread: loads queries, keys and values of one tile after another, or queries alone
// where other threads copy keys and values.
#pragma once

#include "common/place.cuh"
#include "sm90/forward_features.cuh"
#include "sm90/forward_layout.cuh"
#include "sm90/forward_lengths.cuh"
#include "sm90/tile_scheduler.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// Loads a stage. announce(stage) says what comes; it is called when the stage is free.
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

__device__ inline Task task_of(const Tile& tile, const KernelArguments& attention,
                               const mod::Arguments& arguments) {
    const HeadPlace place(attention, arguments, tile.head);
    const SequenceLength length(attention, place.b);
    const TileRange range = KeyBlocks::of(attention, place, length, tile.first_row, tile.end_row);
    return {place.b,   place.h,   place.h_kv, tile.first_row, range.begin,
            range.end, place.low, place.high, tile.end_row};
}

// Hands tasks on to the threads that copy keys, if there are any.
struct NoTasksOfKeys {
    __device__ void hand_on(const Shared&, const Task&) {}
};
class TasksOfKeys {
  public:
    __device__ void hand_on(const Shared& shared, const Task& task) {
        shared.key_tasks.empty(place_.stage).wait(place_.parity ^ 1);
        task.store(shared.key_tasks.at(place_.stage));
        shared.key_tasks.full(place_.stage).arrive();
        place_.advance();
    }

  private:
    Position<KeyTasks> place_;
};

__device__ inline void produce(const KernelArguments& attention, const mod::Arguments& arguments,
                               const ForwardTensorMaps& maps, int* queue, const Shared& shared) {
    Position<Queries> query;
    Position<Keys> key;
    Position<Values> value;
    TabulatedValues tabulated;
    Select<kCopiesKeys, TasksOfKeys, NoTasksOfKeys> tasks_of_keys;
    prefetch(maps.q);
    if constexpr (!kCopiesKeys) {
        prefetch(maps.k);
        prefetch(maps.v);
    }
    prefetch(maps.o);
    const auto announce = [&](const Task& task) {
        shared.queries.empty(query.stage).wait(query.parity ^ 1);
        task.store(shared.task(query.stage));
    };
    const TileScheduler scheduler(attention);
    const TileQueue tile_queue(queue);
#pragma unroll 1
    for (int index = blockIdx.x; index < scheduler.tiles();) {
        const int next = tile_queue.after(index);
        const Tile found = scheduler.tile(index);
        index = next;
        if (!found.exists()) continue;
        const Task task = task_of(found, attention, arguments);
        const SequenceLength length(attention, task.b);
        const int first_query = static_cast<int>(length.first_query_row());
        const int first_key = static_cast<int>(length.first_key_row());
        Corner at{length.entry(), task.h_kv, 0, 0};
        const auto nothing = [](int) {};
        const auto load_key = [&](MaskTile block) {
            at.row = first_key + block.index * mod::kKeyStep;
            load_stage(shared.keys, key, maps.k, at, kKeyPanel, kPanels, [&](int stage) {
                KeyBlocks::announce(shared, stage, block);
                KeyAddends::load(attention, task, block.index, shared, stage);
                PairKinds::load(attention, task, block.index, shared, stage);
            });
            tabulated.load_slices(attention, task, block.index, shared);
        };
        const auto load_value = [&](int tile) {
            at.row = first_key + tile * mod::kKeyStep;
            load_stage(shared.values, value, maps.v, at, kKeyPanel, kValuePanels, nothing);
        };
        const auto load_query = [&] {
            announce(task);
            TaskLengths::store(shared, query.stage, length);
            load_stage(shared.queries, query, maps.q,
                       {length.entry(), task.h, first_query + task.first_row, 0}, kQueryPanel,
                       kPanels, nothing);
        };
        tasks_of_keys.hand_on(shared, task);
        if constexpr (kCopiesKeys)
            load_query();
        else
            KeyBlocks::load(attention, arguments, task, load_key, load_query, load_value);
    }
    tasks_of_keys.hand_on(shared, Task::none());
    announce(Task::none());
    shared.queries.full(query.stage).arrive();
    tile_queue.finish();
}

} // namespace sm90
