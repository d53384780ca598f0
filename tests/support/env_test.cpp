#include <doctest/doctest.h>

#include <cstdlib>
#include <set>
#include <string>

#include "support/env.h"

using namespace flexc::support;

TEST_CASE("every variable has a name of ours, a meaning, and its own place") {
    std::set<std::string> names;
    for (const auto& variable : variables()) {
        CAPTURE(variable.name);
        CHECK(std::string(variable.name).starts_with("FLEXC_"));
        CHECK_FALSE(variable.meaning.empty());
        CHECK(names.insert(variable.name).second);
        CHECK(info(variable.variable).name == variable.name);
    }
}

TEST_CASE("a value is read anew each time, and empty is unset") {
    ::unsetenv("FLEXC_LINEINFO");
    CHECK_FALSE(environment(Variable::lineinfo));
    ::setenv("FLEXC_LINEINFO", "1", 1);
    CHECK(environment(Variable::lineinfo) == "1");
    ::setenv("FLEXC_LINEINFO", "", 1);
    CHECK_FALSE(environment(Variable::lineinfo));
    ::unsetenv("FLEXC_LINEINFO");
}

TEST_CASE("a value that is not of its variable's form is none, and is told") {
    const auto problems = [](const char* name, const char* value) {
        ::setenv(name, value, 1);
        const auto found = environment_problems();
        return found.empty() ? "" : found.front();
    };
    for (const char* count : {"abc", "0", "-3", "3x", "1.5", " 3", "99999999999"}) {
        CHECK(problems("FLEXC_THREADS", count) ==
              std::string("FLEXC_THREADS='") + count + "': expected a whole number from 1");
        CHECK_FALSE(environment_count(Variable::threads));
    }
    CHECK(problems("FLEXC_THREADS", "12").empty());
    CHECK(environment_count(Variable::threads) == 12);
    ::unsetenv("FLEXC_THREADS");
    CHECK_FALSE(problems("FLEXC_LOG", "trace").empty());
    CHECK_FALSE(environment_level(Variable::log));
    CHECK(problems("FLEXC_LOG", "warn").empty());
    CHECK(environment_level(Variable::log) == flexc::LogLevel::warning);
    ::unsetenv("FLEXC_LOG");
    CHECK_FALSE(problems("FLEXC_LINEINFO", "yes").empty());
    CHECK_FALSE(environment_flag(Variable::lineinfo));
    CHECK(problems("FLEXC_LINEINFO", "1").empty());
    CHECK(environment_flag(Variable::lineinfo));
    ::unsetenv("FLEXC_LINEINFO");
    CHECK(environment_problems().empty());
}
