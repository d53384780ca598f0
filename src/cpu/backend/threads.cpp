#include "cpu/backend/threads.h"

#include <algorithm>

#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/version.h>

namespace flexc::cpu {

int default_threads() { return tbb::info::default_concurrency(); }

std::string threads_description() {
    return "oneTBB " + std::to_string(TBB_VERSION_MAJOR) + "." + std::to_string(TBB_VERSION_MINOR);
}

void run_lanes(int lanes, void (*work)(const void* context, int lane), const void* context) {
    if (lanes == 1) {
        work(context, 0);
        return;
    }
    // oneTBB complains on stderr about more workers than it has; lanes then take turns.
    tbb::task_arena arena(std::min(lanes, default_threads()));
    arena.execute([&] {
        tbb::parallel_for(
            tbb::blocked_range<int>(0, lanes, 1),
            [&](const tbb::blocked_range<int>& range) {
                for (int lane = range.begin(); lane != range.end(); ++lane)
                    work(context, lane);
            },
            tbb::simple_partitioner());
    });
}

} // namespace flexc::cpu
