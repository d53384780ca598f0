// A few queries of many heads, which read keys and values where they lie, against the oracle.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "harness.h"
#include "random.h"
#include "random_program.h"

using namespace flexc;
using namespace flexc::test;

namespace {

const std::vector<std::string> kPrograms = {
    "score_mod = score",
    "score_mod = score * 0.5 + 0.01 * (kv_idx - q_idx)\nmask_mod = q_idx >= kv_idx",
    "buffer a: f32[H, KV_LEN] grad\nscore_mod = score + a[h, kv_idx]\n"
    "mask_mod = 0 <= q_idx - kv_idx < 70",
    "buffer s: f32[H] grad\nscore_mod = score * s[h]\nmask_mod = (q_idx + kv_idx) % 3 != 1",
    "score_mod = where(kv_idx % 5 == 2, -inf, score)",
    "buffer g: f32[Q_LEN] grad\nscore_mod = score * g[q_idx]\n"
    "mask_mod = kv_idx // 40 == 3 or kv_idx // 300 == 2"};

Problem random_shape(Random& random) {
    constexpr std::array kHeadDims = {8, 16, 24, 32, 40, 64, 96, 128, 256, 17};
    Problem shape;
    shape.batch = random.integer(1, 3);
    shape.kv_heads = random.integer(1, 6);
    shape.heads = shape.kv_heads * random.pick(std::array{1, 2, 3, 4, 8});
    shape.q_len = random.chance(60) ? random.integer(1, 4) : random.integer(5, 18);
    shape.kv_len = random.chance(50) ? random.integer(1, 300) : random.integer(1000, 1600);
    shape.head_dim = random.pick(kHeadDims);
    shape.head_dim_v = random.chance(60) ? shape.head_dim : random.pick(kHeadDims);
    shape.q_offset = random.chance(60) ? shape.kv_len - std::min(shape.q_len, shape.kv_len) : 0;
    shape.kv_offset = random.chance(20) ? 13 : 0;
    return shape;
}

} // namespace

TEST_CASE("few queries of any heads, layouts, types and masks") {
    for (const std::uint64_t seed : seeds(60)) {
        CAPTURE(seed);
        Random random(seed);
        const Problem shape = random_shape(random);
        const std::string text = random.pick(kPrograms);
        CAPTURE(text);
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
              {.dtype = random.pick(std::array{DType::f32, DType::f16, DType::bf16}),
               .layout = random.pick(kLayouts),
               .threads = static_cast<int>(random.integer(1, 5)),
               .backward = random.chance(30)},
              seed);
    }
}

TEST_CASE("few queries of many entries, whose heads' keys lie side by side") {
    for (const std::uint64_t seed : seeds(25)) {
        CAPTURE(seed);
        Random random(seed);
        Problem shape = random_shape(random);
        shape.batch = random.integer(64, 70);
        shape.kv_heads = random.integer(2, 9);
        shape.heads = shape.kv_heads * random.pick(std::array{1, 2, 4});
        shape.q_len = random.integer(1, 2);
        shape.kv_len = random.integer(1, 90);
        shape.head_dim = random.pick(std::array{8, 16, 32, 40});
        shape.head_dim_v = random.chance(60) ? shape.head_dim : 24;
        const std::string text = random.pick(kPrograms);
        CAPTURE(text);
        CAPTURE(shape.heads);
        CAPTURE(shape.kv_heads);
        CAPTURE(shape.kv_len);
        CAPTURE(shape.head_dim);
        CAPTURE(shape.head_dim_v);
        check(text, shape,
              {.dtype = random.pick(std::array{DType::f32, DType::f16, DType::bf16}),
               .layout = MemoryLayout::heads_inside,
               .threads = static_cast<int>(random.integer(1, 3)),
               .backward = false},
              seed);
    }
}

TEST_CASE("values that are not finite leak from no hidden key") {
    const ir::Program program =
        program_of("buffer shown: i32[KV_LEN]\nscore_mod = score\nmask_mod = shown[kv_idx] == 1");
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        for (const auto [batch, kv_len, q_len, dim, dim_v] :
             {std::array<std::int64_t, 5>{2, 600, 1, 16, 24},
              {2, 600, 3, 16, 24},
              {2, 600, 12, 16, 24},
              {2, 600, 1, 32, 64},
              {2, 600, 3, 96, 32},
              {2, 600, 12, 64, 64},
              {65, 50, 1, 32, 16},
              {65, 50, 3, 16, 24}}) {
            CAPTURE(name(dtype));
            CAPTURE(batch);
            CAPTURE(q_len);
            CAPTURE(dim);
            Problem problem = make_problem(program,
                                           {.batch = batch,
                                            .heads = 4,
                                            .kv_heads = 2,
                                            .q_len = q_len,
                                            .kv_len = kv_len,
                                            .head_dim = dim,
                                            .head_dim_v = dim_v},
                                           5);
            const auto is_shown = [](std::int64_t key) { return key % 9 != 4; };
            for (std::int64_t key = 0; key < kv_len; ++key)
                problem.buffers[0].integers[static_cast<std::size_t>(key)] = is_shown(key) ? 1 : 0;
            const Answer clean = attention_oracle(program, problem);
            const auto poison = [&](std::vector<double>& values, std::int64_t row_dim) {
                for (std::int64_t row = 0; row < batch * 2 * kv_len; ++row)
                    for (std::int64_t d = 0; d < row_dim && !is_shown(row % kv_len); ++d)
                        values[static_cast<std::size_t>(row * row_dim + d)] =
                            d % 2 == 0 ? std::numeric_limits<double>::quiet_NaN()
                                       : std::numeric_limits<double>::infinity();
            };
            poison(problem.k, dim);
            poison(problem.v, dim_v);
            const RunOptions options{.dtype = dtype,
                                     .layout = batch > 2 ? MemoryLayout::heads_inside
                                                         : MemoryLayout::contiguous,
                                     .backward = false};
            check_close(run(program, problem, options), clean, options);
        }
}
