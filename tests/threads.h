// Work on several threads whose results are taken in one order.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace flexc::test {

// As many threads as there are processors, which also serves processes side by side: a thread
// takes the next piece of work when it has one done.
inline int all_processors() {
    return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

// take(n, compute(n)) for all n below count: compute on so many threads, take in the order of n, so
// that what it adds up is the same for any number of threads.
template <typename Compute, typename Take>
void in_order(std::int64_t count, int threads, Compute compute, Take take) {
    std::atomic<std::int64_t> next = 0;
    std::int64_t taken = 0;
    std::mutex mutex;
    std::condition_variable turn;
    const auto work = [&] {
        for (std::int64_t n = next++; n < count; n = next++) {
            const auto result = compute(n);
            std::unique_lock lock(mutex);
            turn.wait(lock, [&] { return taken == n; });
            take(n, result);
            ++taken;
            turn.notify_all();
        }
    };
    std::vector<std::jthread> others;
    for (std::int64_t i = 1; i < std::min<std::int64_t>(threads, count); ++i)
        others.emplace_back(work);
    work();
}

} // namespace flexc::test
