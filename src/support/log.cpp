#include "support/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "support/env.h"

namespace flexc::support {

namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
    switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
    }
    return spdlog::level::err;
}

// Not in spdlog's registry, which a host program may use for itself; leaked, so that destructors
// that run at exit can still log.
spdlog::logger& stderr_logger() {
    static spdlog::logger* const logger = [] {
        auto* made = new spdlog::logger("flexc", std::make_shared<spdlog::sinks::stderr_sink_mt>());
        made->set_pattern("%H:%M:%S.%e %n %l: %v");
        made->set_level(spdlog::level::debug);
        made->flush_on(spdlog::level::debug);
        return made;
    }();
    return *logger;
}

bool stderr_hears(LogLevel level) {
    const auto threshold = environment_level(Variable::log);
    return threshold && level >= *threshold;
}

} // namespace

bool Log::enabled(LogLevel level) const { return sink_.write != nullptr || stderr_hears(level); }

void Log::write(LogLevel level, std::string_view text) const noexcept {
    // A sink that throws must not take the compile with it, and there is nobody else to tell.
    try {
        if (stderr_hears(level)) stderr_logger().log(spdlog_level(level), "{}", text);
        if (sink_.write != nullptr) sink_.write(sink_.user, level, text);
    } catch (...) { // NOLINT(bugprone-empty-catch)
    }
}

} // namespace flexc::support
