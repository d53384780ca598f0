// Programs whose gradients several kernels of Hopper's backward share: random learned biases, each
// of which takes what the one before it makes of the score.
#include <doctest/doctest.h>

#include <array>
#include <string>

#include "api/hopper_check.h"
#include "random.h"

using namespace flexc;
using flexc::test::Case;

namespace {

// Adds a learned bias, whose buffers have a name of their own.
void add_bias(test::Random& random, const std::string& name, std::string& buffers,
              std::string& score) {
    constexpr std::array kTypes = {"f32", "f16", "bf16"};
    const std::string type = random.pick(kTypes);
    const auto read = [&](const std::string& dims, const std::string& indices) {
        buffers += "buffer " + name + ": " + type + "[" + dims + "] grad\n";
        return name + "[" + indices + "]";
    };
    const auto by_distance = [&] {
        constexpr std::array kIndices = {"clamp(q_idx - kv_idx, -30, 30) + 30",
                                         "min(abs(q_idx - kv_idx), 60)",
                                         "min(max(q_idx - kv_idx, 0), 60)"};
        return read("H, 61", std::string("h, ") + random.pick(kIndices));
    };
    const auto by_kinds = [&] {
        return random.chance(50) ? read("5, 7", "q_idx // 16 % 5, kv_idx // 8 % 7")
                                 : read("H, 45", "h, q_idx // 3 % 9 * 5 + kv_idx // 11 % 5");
    };
    switch (random.integer(0, 6)) {
    case 0: score += " + " + by_distance(); break;
    case 1: score = "(" + score + ") * " + by_distance(); break;
    case 2: score += " + " + by_kinds(); break;
    case 3: score = "(" + score + ") * (1 + " + by_kinds() + ")"; break;
    case 4:
        score += " + " + read("B, H, Q_LEN, 41", "b, h, q_idx % Q_LEN, clamp(kv_idx - q_idx, -20, "
                                                 "20) + 20");
        break;
    case 5: score += " + " + read("H, Q_LEN, KV_LEN", "h, q_idx % Q_LEN, kv_idx % KV_LEN"); break;
    default: score = "8 * tanh((" + score + ") * " + read("H", "h") + " / 8)"; break;
    }
}

std::string random_program(test::Random& random) {
    std::string buffers, score = "score";
    const int count = random.integer(2, 4);
    for (int i = 0; i < count; ++i)
        add_bias(random, std::string(1, static_cast<char>('r' + i)), buffers, score);
    constexpr std::array kMasks = {"", "\nmask_mod = q_idx + 30 >= kv_idx",
                                   "\nmask_mod = abs(q_idx - kv_idx) < 70",
                                   "\nmask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2"};
    return buffers + "score_mod = " + score + random.pick(kMasks);
}

Case random_case(test::Random& random) {
    Case one = {.text = random_program(random)};
    test::draw_backward_call(random, one);
    one.f32_outputs = one.accumulates = random.chance(20);
    if (!one.accumulates && random.chance(30)) one.gradient_type = GradientType::buffer;
    return one;
}

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("gradients that several kernels share are what float64 gives" * doctest::skip()) {
    test::Random random(test::seed_of_members());
    for (int i = 0; i < 20; ++i)
        test::check_on_hopper(random_case(random));
}

TEST_CASE("two tables by distance, of which one multiplies the score" * doctest::skip()) {
    for (const int head_dim : {64, 128, 192})
        for (const char* mask : {"", "\nmask_mod = q_idx >= kv_idx"}) {
            Case one = {.text =
                            std::string("buffer s: f32[H, 61] grad\nbuffer t: bf16[H, 61] grad\n"
                                        "sink = t[h, 3]\n"
                                        "score_mod = score * s[h, min(abs(q_idx - kv_idx), 60)]"
                                        " + t[h, clamp(q_idx - kv_idx, -30, 30) + 30]") +
                            mask,
                        .dtype = DType::bf16,
                        .batch = 2,
                        .heads = 4,
                        .kv_heads = 2,
                        .q_len = 201,
                        .kv_len = 233,
                        .head_dim = head_dim};
            one.with_d_lse = true;
            if (head_dim <= 128) one.backward_kernel = BackwardKernel::specialized;
            test::check_on_hopper(one);
        }
}

TEST_SUITE_END();
