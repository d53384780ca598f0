// Random programs by every kernel, types and head dims taking turns, against the definition.
// FLEXC_TEST_SEED is the first seed, FLEXC_FUZZ_PROGRAMS how many; each is one assertion.
#include <array>
#include <cstdlib>

#include <doctest/doctest.h>

#include "api/case.h"
#include "ir/print.h"
#include "random_program.h"

using namespace flexc;
using flexc::test::Case;

namespace {

struct Choice {
    const char* name;
    ForwardKernel forward;
    BackwardKernel backward;
    bool deterministic;
};
constexpr Choice kChoices[] = {
    {"automatic", ForwardKernel::automatic, BackwardKernel::automatic, false},
    {"generic", ForwardKernel::generic, BackwardKernel::generic, false},
    {"split", ForwardKernel::automatic, BackwardKernel::split, false},
    {"fused", ForwardKernel::automatic, BackwardKernel::fused, false},
    {"deterministic", ForwardKernel::automatic, BackwardKernel::automatic, true}};

int programs() {
    const char* count = std::getenv("FLEXC_FUZZ_PROGRAMS");
    return count == nullptr ? 10 : static_cast<int>(std::strtol(count, nullptr, 10));
}

// Heads from some place on of a larger whole: whole groups, or some of one.
void take_part_of_heads(Case& one, test::Random& random) {
    const std::int64_t group = random.integer(1, 4);
    one.global_kv_heads = random.integer(1, 4);
    one.global_heads = one.global_kv_heads * group;
    const std::int64_t first = random.integer(0, one.global_kv_heads - 1);
    if (random.chance(50)) {
        const std::int64_t inside = random.integer(0, group - 1);
        one.heads = random.integer(1, group - inside);
        one.kv_heads = 1;
        one.head_offset = first * group + inside;
        return;
    }
    one.kv_heads = random.integer(1, one.global_kv_heads - first);
    one.heads = one.kv_heads * group;
    one.head_offset = first * group;
}

void check_seed(std::uint64_t seed, Device device, bool of_heads = false) {
    test::Random random(seed);
    // What jumps would jump elsewhere in f32; large programs are for tests that compile nothing.
    const ir::Program program = test::random_program(
        seed,
        {.operators = static_cast<int>(random.integer(5, 20)), .kinks = false, .steps = false});
    const Choice& choice = kChoices[seed % std::size(kChoices)];
    Case one;
    one.dtype = random.pick(std::array{DType::f32, DType::f16, DType::bf16});
    one.batch = random.integer(1, 2);
    one.kv_heads = random.integer(1, 2);
    one.heads = one.kv_heads * random.integer(1, 2);
    one.q_len = random.integer(1, 90);
    one.kv_len = random.integer(1, 150);
    // Kernels of wide heads take the compiler three times as long.
    one.head_dim = random.pick(std::array{16, 16, 16, 64, 64, 128});
    one.dims = {{"N", random.integer(1, 9)}};
    one.with_d_lse = random.chance(30);
    // Where gradients of a buffer cancel, how bf16 rounds o is all that is left of them.
    one.f32_outputs = one.dtype == DType::bf16 || random.chance(20);
    one.forward_kernel = choice.forward;
    one.backward_kernel = choice.backward;
    one.deterministic = choice.deterministic;
    one.runs = choice.deterministic ? 3 : 1; // the last two are compared
    one.max_scores = seed % 3 == 0;
    if (of_heads) take_part_of_heads(one, random);
    CAPTURE(seed);
    CAPTURE(std::string(choice.name));
    CAPTURE(test::name(device));
    CAPTURE(std::string(flexc::name(one.dtype)));
    CAPTURE(one.batch);
    CAPTURE(one.heads);
    CAPTURE(one.kv_heads);
    CAPTURE(one.q_len);
    CAPTURE(one.kv_len);
    CAPTURE(one.head_dim);
    CAPTURE(ir::print(program));
    CHECK(test::run_program(program, one, device, static_cast<std::uint32_t>(seed)) == "");
}

} // namespace

TEST_CASE("random programs by every kernel") {
    const std::uint64_t first = test::first_seed();
    const auto count = static_cast<std::uint64_t>(programs());
    for (const Device device : test::test_devices())
        for (std::uint64_t seed = first; seed < first + count; ++seed)
            check_seed(seed, device);
}

TEST_CASE("random programs on some heads of a larger whole are its slice") {
    const std::uint64_t first = test::first_seed() + 5000;
    const auto count = static_cast<std::uint64_t>(programs());
    for (const Device device : test::test_devices())
        for (std::uint64_t seed = first; seed < first + count; ++seed)
            check_seed(seed, device, true);
}
