// All cores, by oneTBB. Work is given out by lanes: a lane owns scratch memory, and which lane does
// what is fixed wherever results are summed over lanes.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace flexc::cpu {

int default_threads();
std::string threads_description();

// Calls work(context, lane) once for every lane, as many at a time as there are threads.
void run_lanes(int lanes, void (*work)(const void* context, int lane), const void* context);

template <typename Work> void for_lanes(int lanes, const Work& work) {
    run_lanes(
        lanes, [](const void* context, int lane) { (*static_cast<const Work*>(context))(lane); },
        &work);
}

// Units in any order, each by whichever lane is free: for results that do not depend on the lane.
template <typename Work> void for_units(int lanes, std::int64_t units, const Work& work) {
    std::atomic<std::int64_t> next{0};
    for_lanes(lanes, [&](int lane) {
        for (std::int64_t unit; (unit = next.fetch_add(1, std::memory_order_relaxed)) < units;)
            work(unit, lane);
    });
}

} // namespace flexc::cpu
