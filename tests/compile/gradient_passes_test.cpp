// Kernels for gradients of buffers alone, beside which others compute dq, dk and dv.
#include <doctest/doctest.h>

#include <string>

#include "compile/kernels.h"

using namespace flexc;

TEST_CASE("kernels for gradients of buffers alone compile, and spill nothing") {
    const std::string by_distance = "buffer s: f32[H, 61] grad\nbuffer t: f32[H, 61] grad\n"
                                    "score_mod = score * s[h, min(abs(q_idx - kv_idx), 60)] + "
                                    "t[h, min(abs(q_idx - kv_idx), 60)]";
    struct Program {
        std::string text;
        int widest; // head dim for which there is room
    };
    // Diagonals beside dS, entries that elements compute, lines of shifted reads.
    const Program programs[] = {
        {by_distance, 192},
        {by_distance + "\nmask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2", 192},
        {"buffer r: f32[B, H, Q_LEN, 41] grad\nbuffer g: i32[Q_LEN]\nbuffer t: f32[H, 90] grad\n"
         "score_mod = score + r[b, h, q_idx, clamp(kv_idx - q_idx, -20, 20) + 20] + "
         "t[h, clamp(g[q_idx] - g[kv_idx], -40, 40) + 40]",
         128},
        {"buffer a: f32[B, H, Q_LEN]\nbuffer s: f32[H, 61] grad\n"
         "buffer r: f32[B, H, Q_LEN, 41] grad\n"
         "score_mod = score * a[b, h, q_idx] * s[h, min(abs(q_idx - kv_idx), 60)] + "
         "r[b, h, q_idx, clamp(kv_idx - q_idx, -20, 20) + 20]",
         128}};
    for (const int head_dim : {64, 128, 192})
        for (const auto& [text, widest] : programs) {
            if (head_dim > widest) continue;
            CAPTURE(head_dim);
            CAPTURE(text);
            const test::PlannedProgram planned(text, head_dim);
            const plan::Variant& first = planned.plan.backward.front();
            REQUIRE(first.further.size() == 1);
            const auto one = planned.compile(first.further.front());
            REQUIRE_MESSAGE(one, one.error().message.substr(0, 4000));
            CHECK(one->refused == 0);
            CHECK(one->kernel.info.spill_bytes == 0);
        }
}
