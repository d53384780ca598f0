// The list of families, and what is found by it.
#include <doctest/doctest.h>

#include "plan/arch/family.h"

using namespace flexc;
using namespace flexc::plan;

TEST_CASE("a kernel's family is found by its name") {
    for (const Family* family : families()) {
        KernelConfig config;
        config.family = family->name;
        CHECK(&family_of(config) == family);
        CHECK(is_generic(config) == (family == families().back()));
    }
    CHECK(is_generic(KernelConfig{})); // such as the builder of block masks
}

TEST_CASE("the name of a device's architecture gives its family the instructions of its own") {
    for (const int number : {80, 86, 89, 90, 100, 103, 120}) {
        const auto target = target_of(arch_name(number));
        REQUIRE(target.has_value());
        CHECK(target->number == number);
        for (const Family* family : families())
            if (family->runs_on(number) && family->has_own_instructions)
                CHECK(target->has_own_instructions);
    }
    CHECK(arch_name(90) == "sm_90a");
    CHECK(arch_name(80) == "sm_80");
}
