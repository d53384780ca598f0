// Reads whose addresses are affine in q and kv, in Hopper's kernels: random members of the class,
// and programs just outside of it.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "api/hopper_check.h"
#include "api/random_choices.h"

using namespace flexc;
using flexc::test::below;
using flexc::test::Case;

namespace {

std::string number(int x) { return std::to_string(x); }

struct Program {
    std::string text;
    std::map<std::string, std::int64_t> dims = {};
};

void check(const std::vector<Program>& programs) {
    for (const Program& program : programs)
        for (const DType dtype : {DType::bf16, DType::f16}) {
            Case one = {.text = program.text, .dtype = dtype, .batch = 2, .heads = 4};
            one.kv_heads = below(2) == 0 ? 2 : 4;
            one.dims = program.dims;
            constexpr int kHeadDims[] = {64, 128, 40, 192};
            one.head_dim = kHeadDims[below(4)];
            one.q_len = 130 + below(300);
            one.kv_len = 140 + below(300);
            one.q_offset = below(2) * below(90);
            one.with_d_lse = below(2) == 0;
            one.backward_kernel = BackwardKernel::specialized;
            test::check_on_hopper(one);
        }
}

// A buffer and its read, by row or by key, of any direction, clamped or not.
struct Read {
    std::string buffer, term;
};
Read random_read(const std::string& called, bool learned) {
    const std::string types[] = {"f32", "bf16", "f16"};
    const std::string heads[][2] = {{"B, H, ", "b, h, "}, {"H, ", "h, "}, {"", ""}, {"B, ", "b, "}};
    const bool by_key = below(2) == 0;
    const int entries = 3 + below(below(2) == 0 ? 60 : 700), shift = below(entries);
    std::string index = below(2) == 0 ? "q_idx - kv_idx" : "kv_idx - q_idx";
    switch (below(4)) {
    case 0: index += " + " + number(shift); break;
    case 1: index += " + KV_LEN - " + number(shift % 7); break;
    case 2:
        index = "clamp(" + index + " + " + number(shift) + ", 0, " + number(entries - 1) + ")";
        break;
    default:
        index = number(entries - 1) + " - clamp(" + index + ", 0, " + number(entries - 1) + ")";
    }
    const auto& of_heads = heads[below(4)];
    return {"buffer " + called + ": " + types[below(3)] + "[" + of_heads[0] +
                (by_key ? "KV_LEN, " : "Q_LEN, ") + number(entries) + "]" +
                (learned ? " grad\n" : "\n"),
            called + "[" + of_heads[1] + (by_key ? "kv_idx, " : "q_idx, ") + index + "]"};
}

} // namespace

TEST_SUITE_BEGIN("hopper");

TEST_CASE("shifted reads: rows and columns of published models" * doctest::skip()) {
    for (const std::string grad : {"", " grad"})
        check({
            {"buffer r: bf16[B, H, Q_LEN, KV_LEN]" + grad +
             "\nmask_mod = q_idx >= kv_idx\nscore_mod = score + r[b, h, q_idx, q_idx - kv_idx]"},
            {"buffer r: f32[H, Q_LEN, N]" + grad +
                 "\nscore_mod = score + r[h, q_idx, kv_idx - q_idx + Q_LEN - 1]",
             {{"N", 901}}},
            {"buffer c: bf16[B, H, Q_LEN, 256]" + grad + "\nbuffer p: bf16[B, H, KV_LEN, 256]" +
             grad +
             "\nscore_mod = score + c[b, h, q_idx, clamp(q_idx - kv_idx + 128, 0, 255)] + "
             "p[b, h, kv_idx, clamp(q_idx - kv_idx + 128, 0, 255)]"},
        });
}

TEST_CASE("shifted reads: random members of the class" * doctest::skip()) {
    for (const bool learned : {false, true})
        for (int i = 0; i < 10; ++i) {
            std::string text, score = "score_mod = score";
            for (int read = below(2); read < 2; ++read) {
                const auto [buffer, term] = random_read("r" + number(read), learned);
                text += buffer;
                score += " + " + term;
            }
            if (below(3) == 0) text += "mask_mod = q_idx >= kv_idx\n";
            check({{text + score}});
        }
}

TEST_CASE("shifted reads: tiles beyond both clamps" * doctest::skip()) {
    const std::string distance = "clamp(q_idx - kv_idx + 20, 0, 40)";
    const std::string c = "c[b, h, q_idx, " + distance + "]", p = "p[h, kv_idx, " + distance + "]";
    const std::string nearest = "n[kv_idx, clamp(q_idx - kv_idx, 0, 29)]";
    for (const std::string& score :
         {// Sums of multiples,
          "score + 0.125 * (" + c + " - " + p + ")", "score - " + c + " / 3",
          "score + " + p + " * 2", "score + " + c + " - " + c + " + " + p + " + " + nearest,
          // and what is none: ends are what the program computes elements of.
          "score + " + c + " * " + p, "score + tanh(" + c + ") - a[h] * " + p,
          "score * a[h] + " + c + " + " + p, "10 * tanh((score + " + p + ") / 10)",
          "score + " + c + " + k[kv_idx]", "where(" + c + " > 1, -inf, score)"})
        check({{"buffer a: f32[H]\nbuffer k: f32[KV_LEN]\nbuffer c: f16[B, H, Q_LEN, 41]\n"
                "buffer p: f32[H, KV_LEN, 41]\nbuffer n: bf16[KV_LEN, 30]\nscore_mod = " +
                score}});
}

TEST_CASE("shifted reads: beside other terms" * doctest::skip()) {
    for (const std::string grad : {"", " grad"})
        check({
            {"buffer r: f32[H, Q_LEN, 300]" + grad + "\nbuffer a: f32[H]" + grad +
             "\nscore_mod = 12 * tanh((score * a[h] + r[h, q_idx, q_idx - kv_idx + 90]) / 12)"},
            {"buffer p: bf16[B, KV_LEN, 64]" + grad + "\nbuffer t: f32[H, 100]" + grad +
             "\nscore_mod = score + p[b, kv_idx, clamp(kv_idx - q_idx, 0, 63)] + "
             "t[h, min(abs(q_idx - kv_idx), 99)]"},
            {"buffer r: f16[H, Q_LEN, 500]" + grad + "\nbuffer d: bf16[H, Q_LEN, KV_LEN]" + grad +
             "\nscore_mod = score + exp(r[h, q_idx, q_idx - kv_idx] * 0.1) + d[h, q_idx, kv_idx]\n"
             "mask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2"},
            // Lines are neither queries' nor keys', or steps are longer.
            {"buffer r: f32[H, 900, Q_LEN]" + grad +
             "\nscore_mod = score + r[h, q_idx - kv_idx + 450, q_idx]"},
            {"buffer r: f32[H, Q_LEN, 900]" + grad +
             "\nscore_mod = score + r[h, q_idx, 2 * kv_idx - q_idx]"},
        });
}

TEST_SUITE_END();
