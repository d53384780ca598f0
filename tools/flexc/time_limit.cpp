#include "flexc/time_limit.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "flexc/command.h"
#include "support/text.h"

namespace flexc::cli {

void add_time_option(CommandLine command, std::optional<double>& seconds,
                     const std::string& usual) {
    command.option("--max-seconds", seconds,
                   formatted("Give up after so long: {} unless given, 0 for no limit", usual));
}

double parse_seconds(double seconds) {
    constexpr double kMost = 1e9;
    if (seconds < 0 || seconds > kMost) {
        fail_usage("--max-seconds is from 0 to 1e9");
    }
    return seconds;
}

TimeLimit::TimeLimit(double seconds, bool as_json, std::string remedy) {
    if (seconds <= 0) {
        return;
    }
    thread_ = std::jthread([=, remedy = std::move(remedy)](const std::stop_token& ends) {
        std::mutex mutex;
        std::condition_variable_any waits;
        std::unique_lock lock(mutex);
        waits.wait_for(lock, ends, std::chrono::duration<double>(seconds), [] { return false; });
        if (ends.stop_requested()) {
            return;
        }
        print_error({kExitFailure, name(ErrorCode::limit),
                     formatted("not done after {:g} seconds: {}", seconds, remedy)},
                    as_json);
        std::fflush(nullptr);
        std::_Exit(kExitFailure);
    });
}

} // namespace flexc::cli
