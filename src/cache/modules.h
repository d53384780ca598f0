// The compiled kernels of this process, by the whole text of a key. Callers that ask for one key at
// once share one compile.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <unistd.h>

#include "flexc/result.h"
#include "support/guarded.h"

namespace flexc::cache {

struct ModulesStatistics {
    std::uint64_t hits = 0;     // found
    std::uint64_t waits = 0;    // had to wait for another caller's compile
    std::uint64_t made = 0;     // compiled here
    std::uint64_t failures = 0; // compiles that failed
    std::uint64_t evicted = 0;
    std::size_t count = 0;
    std::uint64_t bytes = 0;
};

struct ModulesLimits {
    std::size_t count = 512;
    std::uint64_t bytes = 256ull << 20;
};

// No lock is held while `make` runs or a value dies, so both may use the same Modules.
template <typename T> class Modules {
  public:
    using Value = std::shared_ptr<const T>;
    struct Made {
        Value value;
        std::uint64_t bytes = 0; // for the bound only
    };
    using Make = std::function<Result<Made>()>;

    explicit Modules(ModulesLimits limits = {}) : limits_(limits) {}

    // Returns the value of `key`; calls `make` unless the value exists or another thread is making
    // it. A failure, whether an Error or an exception, is returned to all who wait for it and is
    // not remembered.
    // keep_waiting is called now and then by waiting callers, without a lock; an error ends the
    // wait.
    using KeepWaiting = std::function<Result<void>()>;
    Result<Value> get(const std::string& key, const Make& make,
                      const KeepWaiting& keep_waiting = {}) {
        std::unique_lock lock(mutex_);
        if (const auto found = entries_.find(key); found != entries_.end()) {
            ++statistics_.hits;
            recent_.splice(recent_.begin(), recent_, found->second);
            return found->second->made.value;
        }
        // After fork, what the parent's threads were making will never be finished here.
        if (const auto flight = flights_.find(key);
            flight != flights_.end() && flight->second->process == ::getpid())
            return wait_for(flight->second, lock, keep_waiting);
        const auto flight = std::make_shared<Flight>();
        flights_[key] = flight;
        ++statistics_.made;
        lock.unlock();
        return fly(key, flight, make);
    }

    Value find(const std::string& key) {
        const std::lock_guard lock(mutex_);
        const auto found = entries_.find(key);
        return found == entries_.end() ? nullptr : found->second->made.value;
    }

    void clear() {
        std::list<Item> dead; // outlives the lock
        const std::lock_guard lock(mutex_);
        dead.swap(recent_);
        entries_.clear();
        bytes_ = 0;
    }

    ModulesStatistics statistics() const {
        const std::lock_guard lock(mutex_);
        ModulesStatistics result = statistics_;
        result.count = entries_.size();
        result.bytes = bytes_;
        return result;
    }

  private:
    static constexpr auto kPoll = std::chrono::milliseconds(50);
    struct Item {
        std::string key;
        Made made;
    };
    struct Flight {
        std::thread::id owner = std::this_thread::get_id();
        pid_t process = ::getpid();
        std::condition_variable landed;
        std::optional<Result<Value>> result;
        std::exception_ptr exception;
        bool done() const { return result.has_value() || exception != nullptr; }
    };
    using FlightPointer = std::shared_ptr<Flight>;

    // By value: the map's own pointer is gone once the flight lands.
    Result<Value> wait_for(FlightPointer flight, std::unique_lock<std::mutex>& lock,
                           const KeepWaiting& keep_waiting) {
        if (waits_for_me(flight))
            return Error{ErrorCode::internal, "a compile asked for its own result"};
        ++statistics_.waits;
        const auto me = std::this_thread::get_id();
        waiting_[me] = flight;
        Result<void> keeps;
        while (!flight->landed.wait_for(lock, kPoll, [&] { return flight->done(); }) && keeps) {
            if (!keep_waiting) continue;
            lock.unlock();
            keeps = guarded(keep_waiting);
            lock.lock();
        }
        waiting_.erase(me);
        if (!flight->done()) return keeps.error();
        if (flight->exception) std::rethrow_exception(flight->exception);
        return *flight->result;
    }

    // Whether the thread that makes `flight` is this one, or is waiting for it directly or
    // indirectly.
    bool waits_for_me(FlightPointer flight) const {
        while (true) {
            if (flight->owner == std::this_thread::get_id()) return true;
            const auto next = waiting_.find(flight->owner);
            // After fork, entries of the parent's threads do not count.
            if (next == waiting_.end() || next->second->done() ||
                next->second->process != ::getpid())
                return false;
            flight = next->second;
        }
    }

    Result<Value> fly(const std::string& key, const FlightPointer& flight, const Make& make) {
        std::optional<Result<Made>> outcome;
        std::exception_ptr exception;
        try {
            outcome = make();
        } catch (...) {
            exception = std::current_exception();
        }
        std::list<Item> dead; // outlives the lock
        const std::lock_guard lock(mutex_);
        if (exception)
            flight->exception = exception;
        else if (*outcome)
            flight->result = (*outcome)->value;
        else
            flight->result = std::move(outcome->error());
        flights_.erase(key);
        flight->landed.notify_all();
        if (exception || !*outcome) ++statistics_.failures;
        if (exception) std::rethrow_exception(exception);
        if (*outcome) remember(key, std::move(**outcome), dead);
        return *flight->result;
    }

    void remember(const std::string& key, Made made, std::list<Item>& dead) {
        made.bytes += key.size();
        std::list<Item> newest;
        newest.push_front({key, std::move(made)});
        // Everything that can fail happens before the state changes.
        entries_[newest.front().key] = newest.begin();
        bytes_ += newest.front().made.bytes;
        recent_.splice(recent_.begin(), newest);
        // Keep the newest, even if it exceeds the limit: its caller is about to use it.
        while (recent_.size() > 1 && (recent_.size() > limits_.count || bytes_ > limits_.bytes)) {
            bytes_ -= recent_.back().made.bytes;
            entries_.erase(recent_.back().key);
            dead.splice(dead.begin(), recent_, std::prev(recent_.end()));
            ++statistics_.evicted;
        }
    }

    const ModulesLimits limits_;
    mutable std::mutex mutex_;
    std::list<Item> recent_; // the latest used first
    // Keys are views into recent_, whose items never move.
    std::unordered_map<std::string_view, typename std::list<Item>::iterator> entries_;
    std::unordered_map<std::string, FlightPointer> flights_;
    std::unordered_map<std::thread::id, FlightPointer> waiting_;
    std::uint64_t bytes_ = 0;
    ModulesStatistics statistics_;
};

} // namespace flexc::cache
