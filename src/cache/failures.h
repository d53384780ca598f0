// Remembers recent failed compiles, so that a server which is asked again for a program that takes
// minutes to fail answers at once. For this process only.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "flexc/options.h"
#include "flexc/result.h"

namespace flexc::cache {

class Failures {
  public:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::minutes kKept{5};
    static constexpr std::size_t kMost = 256;

    // Returns the error with which `key` failed under these limits or wider ones.
    std::optional<Error> find(const std::string& key, const CompileLimits& limits,
                              Clock::time_point now = Clock::now()) {
        const std::lock_guard lock(mutex_);
        items_.remove_if([&](const Item& item) { return now - item.since > kKept; });
        for (const Item& item : items_)
            if (item.key == key && allows(item.limits, limits)) return item.error;
        return std::nullopt;
    }

    void remember(const std::string& key, const Error& error, const CompileLimits& limits,
                  Clock::time_point now = Clock::now()) {
        std::list<Item> one;
        one.push_back({key, error, limits, now});
        const std::lock_guard lock(mutex_);
        items_.remove_if([&](const Item& item) { return item.key == key; });
        items_.splice(items_.begin(), one);
        if (items_.size() > kMost) items_.pop_back();
    }

    void clear() {
        const std::lock_guard lock(mutex_);
        items_.clear();
    }

  private:
    struct Item {
        std::string key;
        Error error;
        CompileLimits limits;
        Clock::time_point since;
    };

    // Whether `limits` allow everything that `asked` does; 0 means no limit.
    static bool allows(const CompileLimits& limits, const CompileLimits& asked) {
        const auto within = [](auto most, auto value) {
            return most <= 0 || (value > 0 && value <= most);
        };
        return within(limits.seconds, asked.seconds) &&
               (limits.memory_bytes == 0 ||
                (asked.memory_bytes > 0 && asked.memory_bytes <= limits.memory_bytes));
    }

    std::mutex mutex_;
    std::list<Item> items_; // the newest first
};

} // namespace flexc::cache
