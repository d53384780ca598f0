// Sums of gradients over heads, batch entries and keys: right, and of the same bits on any number
// of threads, whatever the indices of the reads have in common.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "harness.h"
#include "random_program.h"
#include "support/text.h"

using namespace flexc;
using namespace flexc::test;

namespace {

// Two buffers of two dims and a few reads of them, with indices that meet or keep apart.
std::string random_text(Random& random) {
    const std::vector<std::string> indices = {
        "b",           "h",         "h_kv",          "q_idx",
        "kv_idx",      "q_idx % 2", "kv_idx % 3",    "(kv_idx * q_idx) % 2",
        "kv_idx - 3",  "h + 1",     "sel[kv_idx]",   "sel[kv_idx] - 2",
        "kv_idx // 2", "0",         "q_idx + kv_idx"};
    const std::vector<std::string> dims = {"B", "H", "H_KV", "Q_LEN", "KV_LEN", "M", "N"};
    std::string text = "buffer sel: i32[KV_LEN]\n", sum = "score";
    for (const char* name : {"a", "c"}) {
        text +=
            formatted("buffer {}: f32[{}, {}] grad\n", name, random.pick(dims), random.pick(dims));
        for (std::int64_t reads = random.integer(1, 3); reads-- > 0;) {
            sum += formatted(" + {}[{}, {}]", name, random.pick(indices), random.pick(indices));
            if (random.chance(40)) sum += " * score";
        }
    }
    text += "score_mod = " + sum + "\n";
    if (random.chance(40)) text += "mask_mod = q_idx + 500 >= kv_idx\n";
    return text;
}

void check_threads(const std::string& text, const Problem& shape, std::uint64_t seed,
                   const std::map<std::string, std::int64_t>& sizes, bool with_oracle = true) {
    CAPTURE(text);
    const ir::Program program = program_of(text);
    const Problem problem = make_problem(program, shape, seed, sizes);
    const passes::Mod mod = mod_of(program, problem, {});
    const Answer expected = with_oracle ? attention_oracle(program, problem) : Answer();
    std::vector<float> first;
    std::string object;
    for (const int threads : {1, 2, 3, 7}) {
        CAPTURE(threads);
        const RunOptions options{.threads = threads};
        const auto executable = compile_for(mod, problem, options, object);
        object = executable->object_bytes();
        CHECK(executable->threads() == threads);
        for (int again = 0; again < 2; ++again) {
            const Outcome outcome = run(mod, *executable, problem, options);
            if (with_oracle) check_close(outcome, expected, options);
            const std::vector<float> bits = outcome.bits();
            if (first.empty()) first = bits;
            REQUIRE(bits.size() == first.size());
            CHECK(std::memcmp(bits.data(), first.data(), bits.size() * sizeof(float)) == 0);
        }
    }
}

} // namespace

TEST_CASE("random gradient indices: the same bits on any number of threads") {
    for (const std::uint64_t seed : seeds(25)) {
        CAPTURE(seed);
        Random random(seed);
        const std::string text = random_text(random);
        Problem shape;
        shape.batch = random.integer(1, 3);
        shape.kv_heads = random.integer(1, 3);
        shape.heads = shape.kv_heads * random.integer(1, 2);
        shape.q_len = random.integer(1, 9);
        shape.kv_len = random.chance(50) ? random.integer(1, 60) : random.integer(500, 620);
        shape.head_dim = 64; // work enough for several threads
        shape.head_dim_v = 32;
        // Large ones have no copies.
        check_threads(text, shape, seed,
                      {{"M", random.chance(50) ? 6 : 700}, {"N", random.integer(1, 40)}});
    }
}

// Long enough that threads do add at the same time: one that writes what another owns is then seen.
TEST_CASE("heads that meet in a buffer too large for copies") {
    check_threads("buffer a: f32[H, N] grad\n"
                  "score_mod = score + a[h, (kv_idx * q_idx) % 2] * score + a[h_kv, (kv_idx + "
                  "q_idx) % 2]",
                  {.batch = 1,
                   .heads = 8,
                   .kv_heads = 4,
                   .q_len = 512,
                   .kv_len = 512,
                   .head_dim = 16,
                   .head_dim_v = 4},
                  1, {{"N", 30000}}, false);
}

// Another thread may own the element that a wrong address falls on.
TEST_CASE("an index outside touches no element") {
    for (const char* read : {"a[q_idx + 50, 0]", "a[q_idx + 50, kv_idx]", "a[kv_idx + 50, q_idx]",
                             "a[sel[q_idx] + 50, kv_idx]", "a[-1 - h, kv_idx]"}) {
        CAPTURE(read);
        const ir::Program program =
            program_of(formatted("buffer a: f32[N, KV_LEN] grad\nbuffer sel: i32[KV_LEN]\n"
                                 "score_mod = score + {}",
                                 read));
        const Problem problem = make_problem(
            program, {.q_len = 9, .kv_len = 40, .head_dim = 16, .head_dim_v = 4}, 3, {{"N", 3}});
        const Outcome outcome = run(program, problem, {.gradient_start = -0.0});
        for (const double value : outcome.answer.d_buffers.at("a"))
            CHECK((value == 0 && std::signbit(value)));
    }
}

TEST_CASE("keys are split the same way on any number of threads") {
    for (const char* text :
         {"score_mod = score\nmask_mod = q_idx * 4 >= kv_idx",
          "buffer table: f32[8] grad\nbuffer bias: f32[Q_LEN, KV_LEN] grad\nscore_mod = score + "
          "table[(q_idx * 3 + kv_idx) % 8] + bias[q_idx, kv_idx]\nmask_mod = q_idx + 200 >= "
          "kv_idx"})
        check_threads(text,
                      {.batch = 1,
                       .heads = 2,
                       .kv_heads = 1,
                       .q_len = 140,
                       .kv_len = 1100,
                       .head_dim = 16,
                       .head_dim_v = 8},
                      6, {});
}

// Of two keys with the same weight, so that sums are exact in f32 and each element shows how one
// number is rounded: eight at once where elements of a row are adjacent, else one by one.
TEST_CASE("outputs are rounded in the same way whatever their strides") {
    const ir::Program program = program_of("score_mod = 0 * score");
    for (const DType dtype : {DType::f16, DType::bf16}) {
        CAPTURE(name(dtype));
        const bool is_half = dtype == DType::f16;
        Problem problem = make_problem(program,
                                       {.heads = 40,
                                        .kv_heads = 40,
                                        .q_len = 3,
                                        .kv_len = 2,
                                        .head_dim = 8,
                                        .head_dim_v = 256},
                                       21);
        Random random(4);
        const std::vector<double> special = {
            std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
            -std::numeric_limits<double>::infinity(), -0.0,
            is_half ? 65504.0 : 0x1.fep127,           is_half ? 0x1p-24 : 0x1p-126};
        for (double& value : problem.v)
            value = random.chance(10)
                        ? random.pick(special)
                        : std::ldexp(random.real(), static_cast<int>(random.integer(-24, 15)));
        std::vector<float> first;
        for (const MemoryLayout layout : {MemoryLayout::contiguous, MemoryLayout::scattered}) {
            const RunOptions options{.dtype = dtype, .layout = layout, .backward = false};
            const std::vector<float> bits = run(program, problem, options).bits();
            if (first.empty()) first = bits;
            REQUIRE(bits.size() == first.size());
            CHECK(std::memcmp(bits.data(), first.data(), bits.size() * sizeof(float)) == 0);
        }
    }
}
