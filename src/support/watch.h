// Limits on time and memory of a compile: checked in its steps, and enforced from outside for steps
// that cannot check.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "flexc/options.h"
#include "flexc/result.h"
#include "support/guarded.h"

namespace flexc::support {

// Number of running compilers in the whole process.
struct Runs {
    std::atomic<int> going = 0;     // that hold a processor
    std::atomic<int> abandoned = 0; // of these, that were given up
};

// Cheap to copy; any thread may ask.
class Watch {
  public:
    Watch() = default; // of what may take any time
    // The time starts now.
    Watch(const CompileLimits& limits, CancelToken cancel, std::shared_ptr<Runs> runs);

    // Fails if the time or the memory is used up, or somebody cancelled.
    Result<void> check() const;
    bool is_over() const noexcept {
        return guarded_or(true, [&] { return !check(); });
    }
    // Whether check() found time or memory used up, here or in a copy.
    bool has_stopped() const { return stopped_ && stopped_->load(); }

    // Like is_over(), but only reports what an earlier check found: cheap enough for an inner loop.
    bool was_ended() const noexcept { return has_stopped() || cancel_.is_cancelled(); }

    // Whether the host has several processors and not all of them have a run. If one is idle, two
    // more runs may start: the second shares a processor until another run ends. False if runs are
    // not counted.
    bool has_room() const;

    // Runs `work` in a thread of its own, which may outlive the call: it must own what it uses, and
    // should end soon after is_over(). Returns an error at most a second after that, whatever the
    // work does.
    template <typename T> Result<T> run(std::function<Result<T>()> work) const;

  private:
    static constexpr auto kPoll = std::chrono::milliseconds(50);
    // Grace period for work that ends by itself once it is asked to.
    static constexpr auto kGrace = std::chrono::milliseconds(1000);

    // Counts as one run while it exists.
    class Going {
      public:
        explicit Going(std::shared_ptr<Runs> runs) : runs_(std::move(runs)) {
            if (runs_) ++runs_->going;
        }
        ~Going() {
            if (runs_) --runs_->going;
        }
        Going(const Going&) = delete;
        Going& operator=(const Going&) = delete;

      private:
        std::shared_ptr<Runs> runs_;
    };

    bool watches() const;
    Result<void> begin() const;
    // Starts a thread that nobody joins, with a stack for compilers' recursion over long programs,
    // whatever the process gives its threads. Throws as std::thread does.
    static void start_thread(std::function<void()> work);

    Error stopped(std::string message) const;

    CompileLimits limits_{.seconds = 0, .memory_bytes = 0};
    CancelToken cancel_;
    std::shared_ptr<Runs> runs_;
    std::shared_ptr<std::atomic<bool>> stopped_;
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
    std::uint64_t memory_at_start_ = 0;
};

// Resident bytes of this process that do not belong to files; 0 if the system does not say.
std::uint64_t memory_in_use();

template <typename T> Result<T> Watch::run(std::function<Result<T>()> work) const {
    if (!watches()) {
        const Going going(runs_);
        return work();
    }
    if (auto ready = begin(); !ready) return ready.error();
    struct Job {
        std::function<Result<T>()> work;
        std::mutex mutex;
        std::condition_variable done;
        std::optional<Result<T>> result;
        bool is_abandoned = false;
    };
    const auto job = std::make_shared<Job>();
    job->work = std::move(work);
    start_thread([job, runs = runs_] {
        Result<T> result = [&] {
            const Going going(runs);
            return guarded(job->work);
        }();
        const std::lock_guard lock(job->mutex);
        if (job->is_abandoned) {
            --runs->abandoned;
            return;
        }
        job->result = std::move(result);
        job->done.notify_one();
    });
    std::unique_lock lock(job->mutex);
    const auto is_done = [&] { return job->result.has_value(); };
    Result<void> goes_on;
    while (goes_on && !job->done.wait_for(lock, kPoll, is_done))
        goes_on = check();
    if (!goes_on && !job->done.wait_for(lock, kGrace, is_done)) {
        job->is_abandoned = true;
        ++runs_->abandoned;
        return goes_on.error();
    }
    // A result that arrived in time counts; an error that may be due to being stopped does not.
    if (!*job->result && goes_on) goes_on = check();
    if (!*job->result && !goes_on) return goes_on.error();
    return std::move(*job->result);
}

} // namespace flexc::support
