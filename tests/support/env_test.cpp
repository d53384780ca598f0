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
