// Random programs whose score mod has a function of distance with learned numbers inside.
#pragma once

#include <string>
#include <vector>

#include "random.h"

namespace flexc::test {

// D is a distance. Values and derivatives stay small.
inline std::string function_of_distance(Random& random) {
    std::string text = random.pick(std::vector<std::string>{
        "a[h] * log(1 + abs(p[h]) * D)", "exp(-abs(p[h]) * D * 0.05)",
        "a[h] * (D + 1) ** (-0.3 - abs(p[h]))", "a[h] * t[h, min(D, N - 1)]",
        "tanh(t[h, min(D, N - 1)])", "0.3 * t[h, min(D, N - 1)] - a[0] * sqrt(D + 1) * 0.1",
        "a[b] / (1 + D * abs(p[h]))", "t[h, min(D, N - 1)] * t[h, min(D // 2, N - 1)]",
        "(t[h, 0] if D < 9 else t[h, min(D, N - 1)] * p[h])",
        "t[h, min(D, N // 2 - 1) + (N // 2 if kv_idx > q_idx else 0)]",
        "sum(i in 0..4: t[h, i] * sin(D * 0.1 * (i + 1)))"});
    const std::string distance = random.pick(std::vector<std::string>{
        "abs(q_idx - kv_idx)", "max(q_idx - kv_idx, 0)", "max(kv_idx - q_idx, 0)"});
    for (std::size_t at; (at = text.find('D')) != std::string::npos;)
        text.replace(at, 1, distance);
    return text;
}

// Its tables have a dim N.
inline std::string distance_program(Random& random) {
    const std::string value = function_of_distance(random);
    std::string score = random.pick(std::vector<std::string>{
        "score + F", "score * 0.7 - F", "score * s[h] + F", "8 * tanh((score + F) / 8)",
        "(score + F) * s[h]", "score + F + c[kv_idx]", "score * (1 + 0.1 * tanh(F))",
        "score + F + a[h] * (kv_idx - q_idx) * 0.01"});
    score.replace(score.find('F'), 1, "(" + value + ")");
    const std::string mask = random.pick(std::vector<std::string>{
        "", "mask_mod = q_idx >= kv_idx - 60", "mask_mod = abs(q_idx - kv_idx) < 90",
        "mask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2"});
    return "buffer a: f32[H] grad\nbuffer p: f32[H] grad\nbuffer t: f32[H, N] grad\n"
           "buffer s: f32[H] grad\nbuffer c: bf16[KV_LEN] grad\nscore_mod = " +
           score + "\n" + mask;
}

} // namespace flexc::test
