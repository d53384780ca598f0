// Log messages. They go nowhere unless a sink is installed or FLEXC_LOG is set.
#pragma once

#include <string_view>
#include <utility>

#include "flexc/options.h"
#include "support/text.h"

namespace flexc::support {

// A value to pass along; takes no lock of ours while it calls the sink.
class Log {
  public:
    Log() = default;
    explicit Log(LogSink sink) : sink_(sink) {}

    // A sink hears every level; stderr hears FLEXC_LOG's level and up.
    bool enabled(LogLevel level) const;
    void write(LogLevel level, std::string_view text) const noexcept;

    template <typename... Arguments>
    void debug(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
        print(LogLevel::debug, format, std::forward<Arguments>(arguments)...);
    }
    template <typename... Arguments>
    void info(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
        print(LogLevel::info, format, std::forward<Arguments>(arguments)...);
    }
    template <typename... Arguments>
    void warn(fmt::format_string<Arguments...> format, Arguments&&... arguments) const {
        print(LogLevel::warning, format, std::forward<Arguments>(arguments)...);
    }

  private:
    template <typename... Arguments>
    void print(LogLevel level, fmt::format_string<Arguments...> format,
               Arguments&&... arguments) const {
        if (enabled(level)) write(level, formatted(format, std::forward<Arguments>(arguments)...));
    }

    LogSink sink_;
};

} // namespace flexc::support
