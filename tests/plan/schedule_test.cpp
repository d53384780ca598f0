#include <algorithm>

#include <doctest/doctest.h>

#include "plan/arch/family.h"
#include "plan/plan.h"
#include "plan/schedule.h"

using namespace flexc;
using namespace flexc::plan;

namespace {

KernelRequest hopper_forward(int head_dim, bool has_score_mod) {
    return {.kind = KernelKind::forward,
            .arch = 90,
            .dtype = DType::bf16,
            .head_dim = head_dim,
            .head_dim_v = head_dim,
            .has_score_mod = has_score_mod};
}

} // namespace

TEST_CASE("a schedule's text is read back as the same schedule") {
    const ForwardSchedule schedule{3, 96, 2, false, PingPong::softmax, 4};
    CHECK(text_of(schedule) ==
          "warpgroups=3 keys=96 stages=2 overlap=no ping_pong=softmax rescale=4");
    CHECK(read_schedule(text_of(schedule)) == schedule);
    ForwardSchedule with_polynomials = schedule;
    with_polynomials.polynomials = 2;
    CHECK(text_of(with_polynomials) == text_of(schedule) + " polynomials=2");
    CHECK(read_schedule(text_of(with_polynomials)) == with_polynomials);
}

TEST_CASE("what is no schedule's text is not read") {
    for (const char* text :
         {"", " ", "fast", "warpgroups=3",
          "warpgroups=3 keys=96 stages=2 overlap=no ping_pong=softmax",
          "warpgroups=3 keys=96 stages=2 overlap=no ping_pong=softmax rescale=4 ",
          "warpgroups=3 keys=96 stages=2 overlap=no ping_pong=softmax rescale=4 more=1",
          "warpgroups=3 keys=96 stages=2 overlap=no ping_pong=softmax rescale=4 polynomials=0",
          "warpgroups=3 keys=96 stages=2 overlap=no ping_pong=softmax polynomials=2 rescale=4",
          "warpgroups=3 keys=96 stages=2 overlap=no ping_pong=sometimes rescale=4",
          "warpgroups=3 keys=96 stages=2 overlap=maybe ping_pong=softmax rescale=4",
          "warpgroups=3 keys=x stages=2 overlap=no ping_pong=softmax rescale=4",
          "warpgroups=03 keys=96 stages=2 overlap=no ping_pong=softmax rescale=4",
          "warpgroups=99999999999 keys=96 stages=2 overlap=no ping_pong=softmax rescale=4",
          "keys=96 warpgroups=3 stages=2 overlap=no ping_pong=softmax rescale=4"}) {
        CAPTURE(text);
        CHECK_FALSE(read_schedule(text).has_value());
    }
}

TEST_CASE("schedules start with the choice, differ, and fit in shared memory") {
    for (const int head_dim : {64, 80, 96, 128, 192, 256})
        for (const bool has_score_mod : {false, true}) {
            CAPTURE(head_dim);
            KernelRequest request = hopper_forward(head_dim, has_score_mod);
            const auto schedules = forward_schedules(request);
            REQUIRE(schedules.size() >= 9);
            CHECK(candidates(request).front().schedule == schedules.front());
            for (auto one = schedules.begin(); one != schedules.end(); ++one) {
                CHECK(std::find(std::next(one), schedules.end(), *one) == schedules.end());
                request.schedule = *one;
                const std::vector<KernelConfig> all = candidates(request);
                REQUIRE(all.size() == 1); // nothing stands in for what was asked for
                const KernelConfig& config = all.front();
                CHECK(config.schedule == *one);
                CHECK(config.block.shared_bytes <= shared_memory_limit(90));
            }
        }
}

TEST_CASE("polynomials relieve the special function unit where it is what a forward waits for") {
    const auto chosen = [](int head_dim, ScoreWork work) {
        KernelRequest request = hopper_forward(head_dim, true);
        request.work.of_score = work;
        return forward_schedules(request).front().polynomials;
    };
    CHECK(chosen(64, {.instructions = 4, .special_functions = 1}) > 0);
    CHECK(chosen(64, {.instructions = 4, .special_functions = 0}) == 0);
    // Adding and multiplying takes as long.
    CHECK(chosen(64, {.instructions = 20, .special_functions = 1}) == 0);
    // Products do, and no longer with one function more.
    CHECK(chosen(128, {.instructions = 4, .special_functions = 1}) == 0);
    CHECK(chosen(128, {.instructions = 4, .special_functions = 2}) > 0);
}

TEST_CASE("other kernels have one way to divide their work") {
    KernelRequest request = hopper_forward(128, false);
    request.arch = 80;
    CHECK(forward_schedules(request).empty());
    request = hopper_forward(100, false);
    CHECK(forward_schedules(request).empty());
    request = hopper_forward(128, false);
    request.generic_because = "a test";
    CHECK(forward_schedules(request).empty());
}
