// Many queries of f16 and bf16, which are multiplied as bf16 parts where the processor has that,
// against the oracle; and what rounding weights costs, with few queries too.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "harness.h"
#include "memory.h"
#include "random.h"
#include "random_program.h"

using namespace flexc;
using namespace flexc::test;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const std::vector<std::string> kPrograms = {
    "score_mod = score",
    "score_mod = score * 0.5 + 0.01 * (kv_idx - q_idx)\nmask_mod = q_idx >= kv_idx",
    "buffer a: f32[H, KV_LEN]\nscore_mod = score + a[h, kv_idx]\nmask_mod = 0 <= q_idx - kv_idx < "
    "70",
    "buffer s: f32[H]\nscore_mod = score * s[h]\nmask_mod = (q_idx + kv_idx) % 3 != 1",
    "score_mod = where(kv_idx % 5 == 2 or q_idx % 7 == 3, -inf, score)",
    "mask_mod = kv_idx // 48 == 1 or kv_idx // 300 == 1",
    "buffer g: f32[Q_LEN]\nscore_mod = score * g[q_idx]\nmask_mod = kv_idx >= 17 + 16 * h"};

Problem random_shape(Random& random) {
    constexpr std::array kHeadDims = {16, 32, 48, 64, 80, 96, 128, 160, 208, 256};
    Problem shape;
    shape.batch = random.integer(1, 2);
    shape.kv_heads = random.integer(1, 3);
    shape.heads = shape.kv_heads * random.pick(std::array{1, 2, 3});
    shape.q_len = random.integer(17, 150);
    shape.kv_len = random.chance(50) ? random.integer(1, 100) : random.integer(200, 700);
    shape.head_dim = random.pick(kHeadDims);
    shape.head_dim_v = random.chance(60)   ? shape.head_dim
                       : random.chance(70) ? random.pick(kHeadDims)
                                           : 48;
    shape.q_offset = random.chance(60) ? shape.kv_len - std::min(shape.q_len, shape.kv_len) : 0;
    shape.kv_offset = random.chance(20) ? 13 : 0;
    return shape;
}

} // namespace

TEST_CASE("many queries of any heads, layouts and masks") {
    for (const std::uint64_t seed : seeds(60)) {
        CAPTURE(seed);
        Random random(seed);
        const Problem shape = random_shape(random);
        const std::string text = random.pick(kPrograms);
        CAPTURE(shape.heads);
        CAPTURE(shape.kv_heads);
        CAPTURE(shape.q_len);
        CAPTURE(shape.kv_len);
        CAPTURE(shape.head_dim);
        CAPTURE(shape.head_dim_v);
        constexpr std::array kLayouts = {MemoryLayout::contiguous, MemoryLayout::heads_inside,
                                         MemoryLayout::padded, MemoryLayout::reversed,
                                         MemoryLayout::scattered};
        check(text, shape,
              {.dtype = random.pick(std::array{DType::f16, DType::bf16}),
               .layout = random.pick(kLayouts),
               .threads = static_cast<int>(random.integer(1, 3)),
               .backward = random.chance(20),
               .output_flags = random.chance(20) ? unsigned{kOutputF32} : 0u},
              seed);
    }
}

TEST_CASE("what is not finite leaks from no hidden key and no hidden query") {
    constexpr std::int64_t kQueries = 77, kKeys = 610;
    const ir::Program program = program_of("buffer shown: i32[KV_LEN]\n"
                                           "mask_mod = q_idx % 9 != 5 and shown[kv_idx] == 1");
    const auto is_shown = [](std::int64_t key) { return key % 9 != 4 && key < 600; };
    for (const DType dtype : {DType::f16, DType::bf16})
        for (const auto [keys, values, queries] : {std::array{true, false, false},
                                                   {false, true, false},
                                                   {false, false, true},
                                                   {true, true, true}}) {
            CAPTURE(name(dtype));
            CAPTURE(keys);
            CAPTURE(values);
            Problem problem = make_problem(program,
                                           {.batch = 2,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .q_len = kQueries,
                                            .kv_len = kKeys,
                                            .head_dim = 64,
                                            .head_dim_v = 32},
                                           5);
            for (std::int64_t key = 0; key < kKeys; ++key)
                problem.buffers[0].integers[static_cast<std::size_t>(key)] = is_shown(key) ? 1 : 0;
            const Answer clean = attention_oracle(program, problem);
            const auto poison = [](std::vector<double>& numbers, std::int64_t rows,
                                   std::int64_t dim, const auto& is_hidden) {
                for (std::size_t i = 0; i < numbers.size(); ++i)
                    if (is_hidden(static_cast<std::int64_t>(i) / dim % rows))
                        numbers[i] = i % 2 == 0 ? kNan : kInfinity;
            };
            const auto is_hidden = [&](std::int64_t key) { return !is_shown(key); };
            if (keys) poison(problem.k, kKeys, 64, is_hidden);
            if (values) poison(problem.v, kKeys, 32, is_hidden);
            if (queries) poison(problem.q, kQueries, 64, [](std::int64_t q) { return q % 9 == 5; });
            const RunOptions options{.dtype = dtype, .backward = false};
            check_close(run(program, problem, options), clean, options);
        }
}

TEST_CASE("infinite scores and a visible NaN are what they are in f32") {
    const ir::Program program = program_of("score_mod = score");
    for (const DType dtype : {DType::f16, DType::bf16}) {
        CAPTURE(name(dtype));
        Problem problem =
            make_problem(program, {.q_len = 40, .kv_len = 70, .head_dim = 32, .head_dim_v = 32}, 3);
        // Query 1 sees -inf at key 5, and the others what they would see without: their first
        // number is zero.
        for (std::size_t row = 0; row < 40; ++row)
            problem.q[row * 32] = row == 1 ? -1 : 0;
        for (std::size_t row = 0; row < 70; ++row)
            problem.k[row * 32] = 1;
        problem.q[3 * 32 + 1] = kNan;
        problem.q[1 * 32] = -kInfinity;
        const Outcome outcome = run(program, problem, {.dtype = dtype, .backward = false});
        const auto is_nan = [&](std::size_t row) { return std::isnan(outcome.answer.o[row * 32]); };
        CHECK(is_nan(3));
        CHECK_FALSE(is_nan(1)); // all its scores are -inf: it sees nothing
        CHECK(outcome.answer.o[32] == 0);
        for (const std::size_t row : {0, 2, 4, 39})
            CHECK_FALSE(is_nan(row));
    }
}

namespace {

// Two keys whose values nearly cancel: what is left shows the bits of weights that rounding them
// takes away. Returns the largest error of o.
double error_of_weights(DType dtype, std::int64_t queries, std::int64_t heads_of_a_key,
                        unsigned output_flags = 0) {
    constexpr std::int64_t kKvHeads = 8, kKeys = 40, kDim = 32;
    const std::int64_t heads = kKvHeads * heads_of_a_key;
    const ir::Program program = program_of("mask_mod = kv_idx == 7 or kv_idx == 21");
    Problem problem = make_problem(program,
                                   {.heads = heads,
                                    .kv_heads = kKvHeads,
                                    .q_len = queries,
                                    .kv_len = kKeys,
                                    .head_dim = kDim,
                                    .head_dim_v = kDim,
                                    .scale = 0.125},
                                   11);
    std::fill(problem.q.begin(), problem.q.end(), 0.0);
    std::fill(problem.k.begin(), problem.k.end(), 0.0);
    for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t kv_head = head / heads_of_a_key;
        const double score = -0.125 * static_cast<double>(kv_head + 1);
        for (std::int64_t row = 0; row < queries; ++row)
            problem.q[static_cast<std::size_t>((head * queries + row) * kDim)] =
                score / problem.scale;
        const auto at = [&](std::int64_t row) {
            return static_cast<std::size_t>((kv_head * kKeys + row) * kDim);
        };
        problem.k[at(7)] = 1;
        for (std::size_t d = 0; d < kDim; ++d) {
            problem.v[at(7) + d] = 1;
            problem.v[at(21) + d] = -std::round(std::exp(score) * 128) / 128;
        }
    }
    const RunOptions options{.dtype = dtype, .backward = false, .output_flags = output_flags};
    const Outcome outcome = run(program, problem, options);
    const Answer expected = attention_oracle(program, problem);
    double largest = 0;
    for (std::size_t i = 0; i < expected.o.size(); ++i)
        largest = std::max(largest, std::abs(outcome.answer.o[i] - expected.o[i]));
    return largest;
}

// The root of the mean square of a - b.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        sum += (a[i] - b[i]) * (a[i] - b[i]);
    return std::sqrt(sum / static_cast<double>(a.size()));
}

} // namespace

TEST_CASE("weights keep 16 bits, but eight where inputs and outputs are bf16") {
    for (const auto [queries, heads_of_a_key] : {std::array<std::int64_t, 2>{33, 1}, {1, 4}}) {
        CAPTURE(queries);
        CHECK(error_of_weights(DType::f16, queries, heads_of_a_key) < 5e-5);
        CHECK(error_of_weights(DType::bf16, queries, heads_of_a_key) < 0x1p-9);
        CHECK(error_of_weights(DType::bf16, queries, heads_of_a_key, kOutputF32) < 5e-5);
    }
}

TEST_CASE("errors of bf16 outputs are those of rounding them and their weights") {
    const ir::Program program = program_of("score_mod = score");
    for (const auto [queries, keys, dim] :
         {std::array<std::int64_t, 3>{70, 500, 64}, {1, 1500, 128}, {3, 700, 96}}) {
        CAPTURE(queries);
        const Problem problem = make_problem(program,
                                             {.heads = 8,
                                              .kv_heads = 2,
                                              .q_len = queries,
                                              .kv_len = keys,
                                              .head_dim = dim,
                                              .head_dim_v = dim},
                                             17);
        const Outcome outcome = run(program, problem, {.dtype = DType::bf16, .backward = false});
        const std::vector<double> expected = attention_oracle(program, problem).o;
        Memory rounded({1, 1, 1, static_cast<std::int64_t>(expected.size())}, DType::bf16,
                       MemoryLayout::contiguous);
        rounded.set(expected);
        CHECK(distance(outcome.answer.o, expected) < 1.6 * distance(rounded.get(), expected));
    }
}
