#include "cpu/backend/threads.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>
#include <tbb/version.h>

namespace flexc::cpu {

namespace {

// oneTBB's workers do not exist in a child of fork, where it would wait for them: whether this
// process is another than the one that first used them.
bool is_forked() {
    static std::atomic<pid_t> first_user{0};
    const pid_t self = ::getpid();
    pid_t user = 0;
    return !first_user.compare_exchange_strong(user, self) && user != self;
}

// Whether exit() has begun to take oneTBB down: kernels may still run, in exit handlers that were
// registered before oneTBB was loaded.
std::atomic<bool> is_ending{false};

#ifdef __GLIBC__
// Runs after oneTBB has registered its exit handlers, so that this one comes before them. Not
// atexit(): exit.cpp leaves undone what this library registers by that.
__attribute__((constructor)) void watch_for_the_end() {
    ::on_exit([](int, void*) { is_ending.store(true); }, nullptr);
}
#endif

// Runs lanes on threads that only this call uses.
void run_on_threads(int lanes, void (*work)(void* context, int lane), void* context) {
    std::atomic<int> next{0};
    std::mutex mutex;
    std::exception_ptr failure;
    auto take_lanes = [&] {
        try {
            for (int lane; (lane = next.fetch_add(1)) < lanes;)
                work(context, lane);
        } catch (...) {
            const std::lock_guard lock(mutex);
            failure = std::current_exception();
        }
    };
    {
        std::vector<std::jthread> threads;
        try {
            for (int i = 1; i < std::min(lanes, default_threads()); ++i)
                threads.emplace_back(take_lanes);
        } catch (const std::system_error&) {
            // The existing threads run all lanes.
        }
        take_lanes();
    }
    if (failure) std::rethrow_exception(failure);
}

// Arenas that no call uses. A new arena's first work waits until a worker wakes up; in an old one
// workers look for work a while after the last. Never destroyed: calls may run while the process
// ends.
class IdleArenas {
  public:
    using Arena = std::unique_ptr<tbb::task_arena>;

    static IdleArenas& instance() {
        static auto& arenas = *new IdleArenas;
        return arenas;
    }
    Arena take(int threads) {
        const std::lock_guard lock(mutex_);
        // The last one first, as its workers may still be awake.
        const auto found = std::find_if(arenas_.rbegin(), arenas_.rend(), [&](const Arena& arena) {
            return arena->max_concurrency() == threads;
        });
        if (found == arenas_.rend()) {
            arenas_.reserve(++made_); // giving it back must not fail
            return std::make_unique<tbb::task_arena>(threads);
        }
        Arena arena = std::move(*found);
        arenas_.erase(std::next(found).base());
        return arena;
    }
    void give_back(Arena arena) noexcept {
        const std::lock_guard lock(mutex_);
        arenas_.push_back(std::move(arena));
    }

  private:
    std::mutex mutex_;
    std::vector<Arena> arenas_;
    std::size_t made_ = 0;
};

// An arena for the duration of one call: calls at the same time have one each.
class CallArena {
  public:
    explicit CallArena(int threads) : arena_(IdleArenas::instance().take(threads)) {}
    ~CallArena() { IdleArenas::instance().give_back(std::move(arena_)); }
    CallArena(const CallArena&) = delete;
    CallArena& operator=(const CallArena&) = delete;
    tbb::task_arena* operator->() const { return arena_.get(); }

  private:
    IdleArenas::Arena arena_;
};

} // namespace

int default_threads() { return tbb::info::default_concurrency(); }

std::string threads_description() {
    return "oneTBB " + std::to_string(TBB_VERSION_MAJOR) + "." + std::to_string(TBB_VERSION_MINOR);
}

void run_lanes(const CpuThreads& pool, int lanes, void (*work)(void* context, int lane),
               void* context) {
    if (lanes == 1) {
        work(context, 0);
        return;
    }
    if (pool.parallel_for != nullptr) return pool.parallel_for(pool.user, lanes, work, context);
    if (is_ending.load() || is_forked()) return run_on_threads(lanes, work, context);
    // oneTBB complains on stderr about more workers than it has; lanes then take turns.
    const CallArena arena(std::min(lanes, default_threads()));
    // All threads round as this one does, not as the one that made the arena.
    tbb::task_group_context settings(tbb::task_group_context::isolated,
                                     tbb::task_group_context::default_traits |
                                         tbb::task_group_context::fp_settings);
    arena->execute([&] {
        tbb::parallel_for(
            tbb::blocked_range<int>(0, lanes, 1),
            [&](const tbb::blocked_range<int>& range) {
                for (int lane = range.begin(); lane != range.end(); ++lane)
                    work(context, lane);
            },
            tbb::simple_partitioner(), settings);
    });
}

} // namespace flexc::cpu
