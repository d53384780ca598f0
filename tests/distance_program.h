// Random programs whose score mod has a function of distance with learned numbers inside.
#pragma once

#include <string>
#include <vector>

#include "random.h"

namespace flexc::test {

// Puts a distance in the place of each D.
inline std::string with_distance(std::string text, Random& random) {
    const std::string distance = random.pick(std::vector<std::string>{
        "abs(q_idx - kv_idx)", "max(q_idx - kv_idx, 0)", "max(kv_idx - q_idx, 0)"});
    for (std::size_t at; (at = text.find('D')) != std::string::npos;)
        text.replace(at, 1, distance);
    return text;
}

// A sum of so many terms that it is a loop. Some terms are outside of their buffers.
inline std::string sum_of_distance(Random& random) {
    const std::string term = random.pick(std::vector<std::string>{
        "0.2 * w[h, i] * relu(m[i] * log(1 + D) + n[i])", "0.2 * w[h, i] * tanh(m[i] * D * 0.02)",
        "0.1 * t[h, i] * sin(D * 0.1 * (i + 1))", "0.1 * m[i]", "0.1 * p[h] * m[i]",
        "0.001 * m[i + 9] * min(D, 50)", "0.1 * t[h, min(D, N - 1) + i]",
        "0.1 * t[h, i] * m[i] * exp(-abs(p[h]) * D * 0.05)", "0.1 * w[b, i] / (1 + D * i)"});
    const std::string sum =
        "sum(i in 0.." + std::to_string(random.integer(5, 20)) + ": " + term + ")";
    return random.pick(std::vector<std::string>{sum, "tanh(" + sum + ")", sum + " ** 2",
                                                "a[h] * " + sum,
                                                "(0.2 if D < 9 else " + sum + ")"});
}

// D is a distance, as above. Values and derivatives stay small.
inline std::string function_of_distance(Random& random) {
    std::string text =
        random.chance(33)
            ? sum_of_distance(random)
            : random.pick(std::vector<std::string>{
                  "a[h] * log(1 + abs(p[h]) * D)", "exp(-abs(p[h]) * D * 0.05)",
                  "a[h] * (D + 1) ** (-0.3 - abs(p[h]))", "a[h] * t[h, min(D, N - 1)]",
                  "tanh(t[h, min(D, N - 1)])",
                  "0.3 * t[h, min(D, N - 1)] - a[0] * sqrt(D + 1) * 0.1",
                  "a[b] / (1 + D * abs(p[h]))", "t[h, min(D, N - 1)] * t[h, min(D // 2, N - 1)]",
                  "(t[h, 0] if D < 9 else t[h, min(D, N - 1)] * p[h])",
                  "t[h, min(D, N // 2 - 1) + (N // 2 if kv_idx > q_idx else 0)]",
                  "sum(i in 0..4: t[h, i] * sin(D * 0.1 * (i + 1)))"});
    return text;
}

// F is this function of a distance. Tables have a dim N.
inline std::string program_of_distance(std::string score, const std::string& function,
                                       Random& random) {
    score.replace(score.find('F'), 1, "(" + with_distance(function, random) + ")");
    const std::string mask = random.pick(std::vector<std::string>{
        "", "mask_mod = q_idx >= kv_idx - 60", "mask_mod = abs(q_idx - kv_idx) < 90",
        "mask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2"});
    return "buffer a: f32[H] grad\nbuffer p: f32[H] grad\nbuffer t: f32[H, N] grad\n"
           "buffer s: f32[H] grad\nbuffer c: bf16[KV_LEN] grad\n"
           "buffer w: f32[H, 20] grad\nbuffer m: f32[20] grad\nbuffer n: f32[20] grad\n"
           "score_mod = " +
           score + "\n" + mask;
}

inline std::string distance_program(Random& random) {
    const std::string function = function_of_distance(random);
    return program_of_distance(
        random.pick(std::vector<std::string>{"score + F", "score * 0.7 - F", "score * s[h] + F",
                                             "8 * tanh((score + F) / 8)", "(score + F) * s[h]",
                                             "score + F + c[kv_idx]", "score * (1 + 0.1 * tanh(F))",
                                             "score + F + a[h] * (kv_idx - q_idx) * 0.01"}),
        function, random);
}

// All learned terms of its sum are summed by distance.
inline std::string program_of_terms(Random& random) {
    const std::string function = sum_of_distance(random);
    return program_of_distance(random.pick(std::vector<std::string>{
                                   "score + F", "score * 0.7 - F", "8 * tanh((score + F) / 8)",
                                   "(score + F) * s[h]", "score + F + c[kv_idx]"}),
                               function, random);
}

} // namespace flexc::test
