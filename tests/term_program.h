// Random programs with a sum of so many terms that it is a loop, whose terms are no functions of
// the distance; in some of them the terms are learned.
#pragma once

#include <string>
#include <vector>

#include "random.h"

namespace flexc::test {

// Functions of an element that enter terms.
inline std::string value_of_element(Random& random) {
    return random.pick(std::vector<std::string>{
        // FIRE: a distance of what the row's length is.
        "(log((abs(p[h]) + 0.1) * max(q_idx - kv_idx, 0) + 1) / log((abs(p[h]) + 0.1) * "
        "max(q_idx, 7) + 1))",
        // Distances of points that every batch entry has.
        "sqrt(sum(j in 0..3: (x[b, q_idx % Q_LEN, j] - y[b, kv_idx % KV_LEN, j]) ** 2) + 0.01)",
        // Offsets of rows of eight.
        "(sign(q_idx // 8 - kv_idx // 8) * log2(1 + abs(q_idx // 8 - kv_idx // 8)))",
        "(0.0625 * ((q_idx * 7 + kv_idx * 3) % 40))"});
}

// The same, and functions of what forwards copy by tiles, keep on chip or tabulate.
inline std::string value_of_captures(Random& random) {
    if (random.chance(40)) return value_of_element(random);
    return random.pick(std::vector<std::string>{
        "d[b, q_idx, kv_idx]", "z[h, a[q_idx % Q_LEN], o[b, kv_idx % KV_LEN]]",
        "(log2(1 + abs(q_idx - kv_idx)) * c[kv_idx % KV_LEN])",
        "(d[b, q_idx, kv_idx] - 0.5 * z[h, a[q_idx % Q_LEN], o[b, kv_idx % KV_LEN]])",
        "z[h, clamp((q_idx % Q_LEN) // 7 - kv_idx // 7, -2, 2) + 2, kv_idx % 5]"});
}

// A sum of one of the classes of learned terms, of so many at least. Some read outside of their
// buffers.
using ValueOfElement = std::string(Random& random);
inline std::string sum_of_terms(Random& random, ValueOfElement* value, int least) {
    std::string term = random.pick(std::vector<std::string>{
        "0.2 * w[h, i] * relu(m[i] * X + n[i])", "0.2 * w[h, i] * exp(-((X - m[i]) * n[i]) ** 2)",
        "0.2 * w[h, i] * relu(m[i] * X + n[i] * Y + m[i + 9])", "0.1 * w[b, i] * m[i] * X",
        "0.1 * e[q_idx % Q_LEN, i] * X", "0.1 * k[h, kv_idx % KV_LEN, i] * tanh(m[i] * X)",
        "0.2 * u[h, q_idx % Q_LEN, i] * v[h, kv_idx % KV_LEN, i]",
        "0.2 * u[h, q_idx, i] * v[h, kv_idx, i] * w[h, i]", "0.1 * w[h, i] * m[i]",
        "0.1 * w[h, i] * tanh(m[i] * score)", "0.1 * (w[h, i] if q_idx + i > kv_idx else n[i] * X)",
        "0.1 * t[h, (q_idx * 3 + kv_idx) % 50, i] * m[i]"});
    const std::string one = value(random), other = value(random);
    const auto replace = [&](char name, const std::string& by) {
        for (std::size_t at; (at = term.find(name)) != std::string::npos;)
            term.replace(at, 1, by);
    };
    replace('X', one);
    replace('Y', other);
    return "sum(i in 0.." +
           (random.chance(15) ? std::string("R") : std::to_string(random.integer(least, 20))) +
           ": " + term + ")";
}

// The score and the mask of a program with one such sum or two, and other reads.
inline std::string score_of_sums(Random& random, ValueOfElement* value, int least) {
    std::string score = random.pick(std::vector<std::string>{
        "score + F", "score * F", "score * (1 + 0.1 * F)", "8 * tanh((score + F) / 8)",
        "score * s[h] + F", "score + F + c[kv_idx % KV_LEN]", "score + g[h, q_idx % Q_LEN] * F",
        "score + F - G", "score * (1 + tanh(F)) + G",
        "(score + F if kv_idx % 5 > 0 else score * s[h])"});
    for (const char name : {'F', 'G'})
        if (const std::size_t at = score.find(name); at != std::string::npos)
            score.replace(at, 1, sum_of_terms(random, value, least));
    const std::string mask = random.pick(std::vector<std::string>{
        "", "mask_mod = q_idx >= kv_idx - 60", "mask_mod = abs(q_idx - kv_idx) < 90",
        "mask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2"});
    return "score_mod = " + score + "\n" + mask;
}

// A program in which all of these have gradients.
inline std::string term_program(Random& random) {
    return "buffer p: f32[H] grad\nbuffer s: f32[H] grad\nbuffer c: bf16[KV_LEN] grad\n"
           "buffer g: f32[H, Q_LEN] grad\n"
           "buffer w: f32[H, R] grad\nbuffer m: f32[20] grad\nbuffer n: f32[20] grad\n"
           "buffer u: f32[H, Q_LEN, 20] grad\nbuffer v: f16[H, KV_LEN, 20] grad\n"
           "buffer e: bf16[Q_LEN, 20] grad\nbuffer k: f32[H, KV_LEN, 20] grad\n"
           "buffer t: f32[H, 50, 20] grad\n"
           "buffer x: f32[B, Q_LEN, 3]\nbuffer y: f32[B, KV_LEN, 3]\n" +
           score_of_sums(random, value_of_element, 5);
}

// One whose terms have none. type: of a dense bias that terms may read. learned: " grad" if what is
// read beside the terms has gradients.
inline std::string sum_program(Random& random, const std::string& type,
                               const std::string& learned = "") {
    return "buffer p: f32[H]\nbuffer s: f32[H]" + learned + "\nbuffer c: bf16[KV_LEN]" + learned +
           "\nbuffer g: f32[H, Q_LEN]" + learned +
           "\nbuffer w: f32[H, R]\nbuffer m: f32[20]\nbuffer n: f32[20]\n"
           "buffer u: f32[H, Q_LEN, 20]\nbuffer v: f16[H, KV_LEN, 20]\n"
           "buffer e: bf16[Q_LEN, 20]\nbuffer k: f32[H, KV_LEN, 20]\nbuffer t: f32[H, 50, 20]\n"
           "buffer x: f32[B, Q_LEN, 3]\nbuffer y: f32[B, KV_LEN, 3]\n"
           "buffer a: i32[Q_LEN]\nbuffer o: i32[B, KV_LEN]\nbuffer z: f32[H, 5, 5]\n"
           "buffer d: " +
           type + "[B, Q_LEN, KV_LEN]\n" + score_of_sums(random, value_of_captures, 9);
}

} // namespace flexc::test
