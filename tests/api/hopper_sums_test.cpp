// Sums that Hopper's kernels compute for some elements of a thread at once: random members.
#include <doctest/doctest.h>

#include <array>
#include <string>

#include "api/hopper_check.h"
#include "term_program.h"

using namespace flexc;
using flexc::test::Case;

namespace {

// learned: of test::sum_program().
Case random_case(test::Random& random, const std::string& learned = "") {
    const std::array types = {"f32", "f32", "bf16", "f16"};
    Case one = {.text = test::sum_program(random, random.pick(types), learned),
                .batch = 2,
                .heads = 4,
                .backward = false};
    one.dtype = random.chance(50) ? DType::f16 : DType::bf16;
    constexpr std::array kKeyHeads = {1, 2, 4};
    one.kv_heads = random.pick(kKeyHeads);
    one.dims = {{"R", random.integer(9, 24)}};
    constexpr std::array kHeadDims = {64, 64, 128, 128, 40, 96, 192, 256};
    one.head_dim = random.pick(kHeadDims);
    one.q_len = random.integer(1, 400);
    one.kv_len = random.integer(1, 400);
    one.q_offset = random.chance(30) ? random.integer(0, 89) : 0;
    one.kv_offset = random.chance(30) ? random.integer(0, 89) : 0;
    one.max_scores = random.chance(20);
    return one;
}

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("sums for some elements at once are what float64 gives" * doctest::skip()) {
    test::Random random(test::seed_of_members());
    for (int i = 0; i < 24; ++i)
        test::check_on_hopper(random_case(random));
}

TEST_CASE("gradients through sums for some elements at once are what float64 gives" *
          doctest::skip()) {
    test::Random random(test::seed_of_members());
    for (int i = 0; i < 12; ++i) {
        Case one = random_case(random, i % 3 == 0 ? " grad" : "");
        one.backward = true;
        one.with_d_lse = random.chance(30);
        one.deterministic = random.chance(20);
        test::check_on_hopper(one);
    }
}

TEST_SUITE_END();
