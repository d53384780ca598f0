// All cores, by oneTBB. Work is given out by lanes: a lane owns scratch memory, and which lane does
// what is fixed wherever results are summed over lanes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "flexc/types.h"

namespace flexc::cpu {

int default_threads();

// Number of threads worth waking for so many multiplications: each gets about 20 us of work.
constexpr int useful_threads(int threads, std::int64_t multiplications) {
    constexpr std::int64_t kLeastWork = std::int64_t{1} << 20;
    return static_cast<int>(
        std::clamp<std::int64_t>(multiplications / kLeastWork, 1, std::max(threads, 1)));
}

std::string threads_description();

// Calls work(context, lane) once for every lane, as many at a time as there are threads, on the
// pool's threads if it has any.
void run_lanes(const CpuThreads& pool, int lanes, void (*work)(void* context, int lane),
               void* context);

// Runs units in any order, each in whichever lane is free: for results that do not depend on the
// lane.
template <typename Work>
void for_units(const CpuThreads& pool, int lanes, std::int64_t units, const Work& work) {
    std::atomic<std::int64_t> next{0};
    auto take_units = [&](int lane) {
        for (std::int64_t unit; (unit = next.fetch_add(1, std::memory_order_relaxed)) < units;)
            work(unit, lane);
    };
    run_lanes(
        pool, lanes,
        [](void* context, int lane) { (*static_cast<decltype(take_units)*>(context))(lane); },
        &take_units);
}

// The same where a unit goes on with what the one before it reads: a lane takes several at once,
// and fewer towards the end.
template <typename Work>
void for_runs_of_units(const CpuThreads& pool, int lanes, std::int64_t units, const Work& work) {
    std::atomic<std::int64_t> next{0};
    auto take_runs = [&](int lane) {
        std::int64_t begin = 0;
        while ((begin = next.load(std::memory_order_relaxed)) < units) {
            const std::int64_t end =
                begin + std::max<std::int64_t>((units - begin) / (std::int64_t{2} * lanes), 1);
            if (!next.compare_exchange_strong(begin, end, std::memory_order_relaxed)) continue;
            for (std::int64_t unit = begin; unit < end; ++unit)
                work(unit, lane);
        }
    };
    run_lanes(
        pool, lanes,
        [](void* context, int lane) { (*static_cast<decltype(take_runs)*>(context))(lane); },
        &take_runs);
}

} // namespace flexc::cpu
