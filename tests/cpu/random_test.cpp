// Emitted code against the interpreter on random programs: all operators, types and kinds of reads.
#include <doctest/doctest.h>

#include <string>

#include "harness.h"
#include "random_program.h"

using namespace flexc;
using namespace flexc::test;

namespace {

void check_seed(std::uint64_t seed, const RandomOptions& random_options, bool backward) {
    CAPTURE(seed);
    Random random(seed);
    const ir::Program program = random_program(seed, random_options);
    Problem shape;
    shape.batch = random.integer(1, 2);
    shape.kv_heads = random.integer(1, 2);
    shape.heads = shape.kv_heads * random.integer(1, 2);
    shape.q_len = random.integer(1, 9);
    shape.kv_len = random.integer(1, 40);
    shape.head_dim = 16; // a scale of 1/4: scores are exact, so that both sides see the same ones
    shape.head_dim_v = 4;
    const Problem problem = make_problem(program, shape, seed, {{"N", random.integer(1, 9)}});
    const RunOptions options{.layout = random.chance(50) ? MemoryLayout::contiguous
                                                         : MemoryLayout::scattered,
                             .backward = backward};
    check_close(run(program, problem, options), attention_oracle(program, problem), options);
}

} // namespace

TEST_CASE("random programs, forward and backward") {
    for (const std::uint64_t seed : seeds(30))
        check_seed(seed, {.kinks = false, .steps = false}, true);
}

TEST_CASE("random programs with integers, bounds and masks only") {
    for (const std::uint64_t seed : seeds(16))
        check_seed(seed + 1000, {.operators = 60, .kinks = false, .steps = false}, true);
}
