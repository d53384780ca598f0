#include <doctest/doctest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/log.h"

using flexc::LogLevel;
using flexc::support::Log;

namespace {

// In a process of its own, whose stderr and environment nobody else shares.
std::string standard_error(const char* level, const Log& log) {
    int ends[2];
    if (::pipe(ends) != 0) return "no pipe";
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(ends[1], STDERR_FILENO);
        ::close(ends[0]);
        level == nullptr ? ::unsetenv("FLEXC_LOG") : ::setenv("FLEXC_LOG", level, 1);
        log.debug("a {}", 1);
        log.info("b {{}}");
        log.warn("c {}", "{}");
        ::_exit(0);
    }
    ::close(ends[1]);
    std::string text;
    char byte = 0;
    while (::read(ends[0], &byte, 1) == 1)
        text += byte;
    ::close(ends[0]);
    int status = -1;
    ::waitpid(child, &status, 0);
    return status == 0 ? text : "failed";
}

using Messages = std::vector<std::pair<LogLevel, std::string>>;

} // namespace

TEST_CASE("nobody hears anything unless asked for") {
    CHECK(standard_error(nullptr, {}).empty());
    CHECK(standard_error("nonsense", {}).empty());
}

TEST_CASE("FLEXC_LOG sends its level and up to stderr") {
    const std::string warnings = standard_error("warn", {});
    CHECK(warnings.find("flexc warning: c {}") != std::string::npos);
    CHECK(warnings.find("b {}") == std::string::npos);
    const std::string all = standard_error("debug", {});
    CHECK(all.find("a 1") != std::string::npos);
    CHECK(all.find("b {}") != std::string::npos);
    CHECK(all.find("c {}") != std::string::npos);
    CHECK(standard_error("error", {}).empty());
}

TEST_CASE("a sink hears every level, in order") {
    Messages heard;
    const Log log({[](void* user, LogLevel level, std::string_view text) {
                       static_cast<Messages*>(user)->emplace_back(level, text);
                   },
                   &heard});
    log.debug("x = {}", 3);
    log.info("y");
    log.warn("z {}", "{not a format}");
    CHECK(heard == Messages{{LogLevel::debug, "x = 3"},
                            {LogLevel::info, "y"},
                            {LogLevel::warning, "z {not a format}"}});
}

TEST_CASE("a sink may log itself: no lock is held") {
    static int depth;
    depth = 0;
    const Log log({[](void* user, LogLevel, std::string_view) {
                       if (++depth < 3) static_cast<const Log*>(user)->warn("again");
                   },
                   const_cast<Log*>(&log)});
    log.warn("first");
    CHECK(depth == 3);
}

TEST_CASE("a sink that throws harms nobody") {
    const Log log(
        {[](void*, LogLevel, std::string_view) { throw std::runtime_error("sink"); }, nullptr});
    CHECK_NOTHROW(log.warn("x"));
}
