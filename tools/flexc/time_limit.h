// How long a command may work.
#pragma once

#include <optional>
#include <string>
#include <thread>

#include "flexc/command_line.h"

namespace flexc::cli {

// --max-seconds; `usual` is what holds where it is not given.
void add_time_option(CommandLine command, std::optional<double>& seconds, const std::string& usual);
// Seconds that somebody gave, 0 for no limit.
double parse_seconds(double seconds);

// Ends the process with an error where it still lives after so many seconds: a call of a kernel
// cannot be stopped.
class TimeLimit {
  public:
    // 0: no limit. `remedy` ends the message.
    TimeLimit(double seconds, bool as_json, std::string remedy);

  private:
    std::jthread thread_;
};

} // namespace flexc::cli
