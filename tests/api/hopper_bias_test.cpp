// Dense biases in Hopper's forward: those that TMA takes, and others. Skipped
// unless asked for, because they need that GPU: tests/gpu runs them.
#include <limits>

#include <doctest/doctest.h>

#include "api/hopper_check.h"

using namespace flexc;
using flexc::test::Case;

namespace {

Case biased(const std::string& type, const std::string& dims, const std::string& index) {
    return {.text = "buffer bias: " + type + "[" + dims + "]\nscore_mod = score + bias[" + index +
                    "]\n",
            .dtype = DType::bf16,
            .batch = 2,
            .heads = 2,
            .kv_heads = 1,
            .q_len = 300,
            .kv_len = 520,
            .head_dim = 128,
            .head_dim_v = 128};
}

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("dense biases in any order of dimensions" * doctest::skip()) {
    const std::pair<const char*, const char*> places[] = {
        {"H, Q_LEN, KV_LEN", "h, q_idx, kv_idx"}, {"B, H, Q_LEN, KV_LEN", "b, h, q_idx, kv_idx"},
        {"Q_LEN, H, KV_LEN", "q_idx, h, kv_idx"}, {"B, Q_LEN, 3, KV_LEN", "b, q_idx, 1, kv_idx"},
        {"Q_LEN, KV_LEN", "q_idx, kv_idx"},
    };
    for (const auto& [dims, index] : places) {
        check_on_gpu(biased("bf16", dims, index));
        Case ragged = biased("bf16", dims, index);
        ragged.kv_len = 517;
        check_on_gpu(ragged);
    }
}

// TMA loads boxes that begin at aligned bytes, and others would end with an illegal instruction.
TEST_CASE("dense biases at offsets of keys" * doctest::skip()) {
    for (const char* type : {"bf16", "f32"})
        for (const int head_dim : {64, 128, 256})
            for (const int offset : {3, 8, 20}) {
                Case one = biased(type, "H, Q_LEN, KV_LEN", "h, q_idx, kv_idx");
                one.head_dim = one.head_dim_v = head_dim;
                one.kv_offset = offset;
                one.kv_len = 520 - offset; // rows of the bias are aligned
                one.forward_kernel = ForwardKernel::specialized;
                check_on_gpu(one);
            }
}

TEST_CASE("dense biases of any type" * doctest::skip()) {
    for (const char* type : {"bf16", "f16", "f32"})
        for (const int head_dim : {64, 80, 128, 192, 256}) {
            Case one = biased(type, "H, Q_LEN, KV_LEN", "h, q_idx, kv_idx");
            one.head_dim = one.head_dim_v = head_dim;
            one.dtype = head_dim == 80 ? DType::f16 : DType::bf16;
            check_on_gpu(one);
        }
}

TEST_CASE("dense biases that hide keys, or are large" * doctest::skip()) {
    Case one = biased("bf16", "H, Q_LEN, KV_LEN", "h, q_idx, kv_idx");
    const auto key = [&](std::int64_t position) { return position % one.kv_len; };
    const auto query = [&](std::int64_t position) { return position / one.kv_len % one.q_len; };
    one.reals["bias"] = [&](std::int64_t position) {
        const bool hides = query(position) % 5 == 3 || (key(position) + query(position)) % 7 < 3;
        return hides ? -std::numeric_limits<double>::infinity()
                     : 0.25 * static_cast<double>(key(position) % 9);
    };
    check_on_gpu(one);
    one.reals["bias"] = [&](std::int64_t position) {
        return key(position) < 200 ? -1e9 : 100.0 - 0.5 * static_cast<double>(key(position) % 300);
    };
    check_on_gpu(one);
    one.text += "mask_mod = q_idx >= kv_idx - 200";
    check_on_gpu(one);
}

TEST_CASE("dense biases beside other addends" * doctest::skip()) {
    const std::string bias = "buffer bias: bf16[H, Q_LEN, KV_LEN]\nscore_mod = ";
    for (const char* score : {"score + bias[h, q_idx, kv_idx] * (h + 1) - 0.5",
                              "score - 2 * bias[h, q_idx, kv_idx] + (kv_idx - q_idx) * 0.01",
                              "score * 0.5 + bias[h, q_idx, kv_idx]",
                              "score + (bias[h, q_idx, kv_idx] if kv_idx > q_idx else 0.0)"}) {
        Case one = biased("bf16", "", "");
        one.text = bias + score;
        check_on_gpu(one);
        one.head_dim = one.head_dim_v = 64;
        one.kv_len = 200;
        check_on_gpu(one);
    }
}

// No form of the score as a factor and addends: the program computes each logit, from what was
// copied or tabulated.
TEST_CASE("what is read for each pair in scores that cannot be taken apart" * doctest::skip()) {
    const std::string buffers = "buffer bias: bf16[H, Q_LEN, KV_LEN]\nbuffer f: f32[B, KV_LEN]\n"
                                "buffer d: f32[H, 9]\nbuffer t: f32[31, H]\n"
                                "buffer e: i32[Q_LEN, KV_LEN]\nbuffer g: i32[KV_LEN]\nscore_mod = ";
    const std::string bias = "bias[h, q_idx, kv_idx]", table = "t[e[q_idx, kv_idx], h]",
                      factor = "d[h, clamp(q_idx - kv_idx, -4, 4) + 4]";
    const std::string scores[] = {"score * " + bias,
                                  "(score + " + bias + ") * f[b, kv_idx]",
                                  "(score + " + bias + ") * " + factor,
                                  "score * " + factor + " + " + bias,
                                  "8 * tanh(score / 8) + h * " + bias,
                                  "score * (1 + " + table + ")",
                                  "(score + " + table + ") * " + factor,
                                  "score * " + factor + " + " + table,
                                  "score * f[b, kv_idx] + t[g[kv_idx] + g[q_idx], h]",
                                  "score * " + factor +
                                      " + t[clamp(q_idx // 8 - kv_idx // 8, -15, 15) + 15, h]"};
    for (const std::string& score : scores)
        for (const int head_dim : {64, 128, 192}) {
            Case one = biased("bf16", "", "");
            one.text = buffers + score;
            one.head_dim = one.head_dim_v = head_dim;
            one.kv_len = head_dim == 64 ? 517 : 520;
            one.backward = false;
            for (const char* indices : {"e", "g"})
                one.integers[indices] = [](std::int64_t position) {
                    return (position * 7 + position / 520) % 34 - 1; // some are outside
                };
            check_on_gpu(one);
        }
}

TEST_CASE("a part of the queries of a dense bias" * doctest::skip()) {
    Case one = biased("bf16", "H, Q_LEN, KV_LEN", "h, q_idx, kv_idx");
    one.q_offset = 13;
    check_on_gpu(one);
    one.kv_offset = 5;
    check_on_gpu(one);
}

TEST_SUITE_END();
