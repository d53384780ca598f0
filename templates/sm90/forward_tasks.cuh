// Lets threads beside the producer, which stage what is added to scores, follow its tasks.
#pragma once

#include "common/place.cuh"
#include "sm90/forward_layout.cuh"

namespace sm90 {

// Calls visit(task, place) for every tile of queries of the block.
template <typename Visit>
__device__ inline void visit_tasks(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const Shared& shared,
                                   Visit visit) {
    Position<Queries> query;
#pragma unroll 1
    while (true) {
        shared.queries.full(query.stage).wait(query.parity);
        const Task task = Task::load(shared.task(query.stage));
        if (task.is_none()) return;
        shared.queries.empty(query.stage).arrive();
        query.advance();
        visit(task,
              HeadPlace(attention, arguments, task.b, task.h, task.h_kv, task.low, task.high));
    }
}

} // namespace sm90
