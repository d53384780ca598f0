#include <doctest/doctest.h>

#include "cache/scratch.h"
#include "flexc/compile.h"

using namespace flexc;

namespace {

constexpr std::string_view kArch = "sm_90a";

std::string forward_schedule(const std::string& text, const CompileOptions& options) {
    const auto result = compile_offline(text, options, kArch);
    REQUIRE(result);
    return result->kernels.front().info.schedule;
}

} // namespace

TEST_CASE("a kept schedule is what a compile without one finds, until it is forgotten") {
    const test::Scratch scratch;
    const std::string text = "mask_mod = q_idx >= kv_idx";
    CompileOptions options{.backward = false, .cache = scratch.options()};
    const auto schedules = forward_schedules(text, options, kArch);
    REQUIRE(schedules);
    REQUIRE(schedules->size() > 2);
    CHECK(forward_schedule(text, options) == schedules->front());

    CompileOptions asked = options;
    asked.schedule = (*schedules)[2];
    CHECK(forward_schedule(text, asked) == asked.schedule);
    CHECK(forward_schedule(text, options) == schedules->front());

    REQUIRE(keep_schedule(text, asked, kArch));
    const auto kept = compile_offline(text, options, kArch);
    REQUIRE(kept);
    CHECK(kept->kernels.front().info.schedule == asked.schedule);
    CHECK(kept->cached);
    // With a backward too: the forward is the same kernel.
    options.backward = true;
    CHECK(forward_schedule(text, options) == asked.schedule);

    asked.schedule.clear();
    REQUIRE(keep_schedule(text, asked, kArch));
    CHECK(forward_schedule(text, options) == schedules->front());
}

TEST_CASE("a schedule that the program does not have is refused with one that it has") {
    const test::Scratch scratch;
    CompileOptions options{.backward = false, .cache = scratch.options()};
    options.schedule = "warpgroups=9 keys=128 stages=1 overlap=yes ping_pong=none rescale=0";
    auto result = compile_offline("score * 2", options, kArch);
    REQUIRE_FALSE(result);
    CHECK(result.error().code == ErrorCode::invalid_option);
    CHECK(result.error().message.find("such as 'warpgroups=") != std::string::npos);

    result = compile_offline("score * 2", options, "sm_80");
    REQUIRE_FALSE(result);
    CHECK(result.error().message.find("leave it empty") != std::string::npos);

    CHECK_FALSE(keep_schedule("score * 2", options, kArch));
    options.schedule.clear();
    options.cache.disk = false;
    const auto nowhere = keep_schedule("score * 2", options, kArch);
    REQUIRE_FALSE(nowhere);
    CHECK(nowhere.error().message.find("cache on disk is off") != std::string::npos);
}
