// Programs whose gradients are summed over entries of tables, and what the sums should be.
#pragma once

#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "d_scores.h"
#include "draws.h"
#include "host_arguments.h"
#include "ir/interp.h"
#include "passes/gradient_sum.h"
#include "passes/table_gradient.h"

namespace flexc::test {

struct TableProgram {
    std::string text;
    double scale = 1;       // of dS
    bool is_finite = true;  // dS
    int sums = 1;           // reads that are summed so
    bool are_kinds = false; // of which one is by few kinds of queries and keys
};

inline std::vector<TableProgram> table_programs(std::mt19937& random) {
    const auto below = draws_below(random);
    const auto number = [](int x) { return std::to_string(x); };
    const int w = 3 + below(40), rows = 440 / w + 2;
    const std::string of_rows = "q_idx // " + number(w) + " - kv_idx // " + number(w);
    const std::string of_columns = "q_idx % " + number(w) + " - kv_idx % " + number(w);
    const std::string kinds = "buffer g: i8[Q_LEN]\nbuffer k: i8[KV_LEN]\n";
    return {
        // An image.
        {"buffer t: f32[H, " + number(2 * rows) + ", " + number(2 * w - 1) +
         "] grad\nscore_mod = score + t[h, " + of_rows + " + " + number(rows) + ", " + of_columns +
         " + " + number(w - 1) + "]"},
        // The same with its ends inside of the sequences.
        {"buffer t: f32[4, 7] grad\nscore_mod = score - t[" + of_columns + " + 2, " + of_rows +
         " + 3] * 0.5\n"},
        // A volume.
        {"buffer t: f32[20, 9, 11, H] grad\nscore_mod = score + t[q_idx // 30 - kv_idx // 30 + 9, "
         "q_idx // 6 % 5 - kv_idx // 6 % 5 + 4, q_idx % 6 - kv_idx % 6 + 5, h]",
         0x1p-13},
        // Kinds of queries and keys, some of them outside.
        {kinds + "buffer t: f32[3, B, 4] grad\nscore_mod = score + t[g[q_idx], b, k[kv_idx]]",
         0x1p66, true, 1, true},
        {kinds + "buffer t: f32[12] grad\nscore_mod = score + t[g[q_idx] * 4 + k[kv_idx] - 3]"},
        // As many as products have rows for, and more than one warp has.
        {"buffer t: f32[32, 27, H] grad\nscore_mod = score + t[kv_idx * 7 % 34, q_idx * 5 % 29, h]",
         0x1p-20, true, 1, true},
        {"buffer t: f32[H, 9, 16] grad\nscore_mod = score - t[h, q_idx * 5 % 9, kv_idx * 7 % 16] "
         "* 0.5",
         1, true, 1, true},
        {"buffer t: f32[20, 20] grad\nscore_mod = score + t[q_idx % 20, kv_idx % 21]", 1, false, 1,
         true},
        {"buffer t: f32[33, 3] grad\nscore_mod = score + t[q_idx % 33, kv_idx % 3]"},
        // More entries than there is memory for.
        {"buffer t: f32[9000] grad\nscore_mod = score + t[(q_idx * 37) % 4500 + (kv_idx * 29) % "
         "4500]"},
        {kinds + "buffer t: f32[5, 5] grad\nbuffer u: f32[H, 25] grad\nscore_mod = score + "
                 "t[g[q_idx], k[kv_idx]] + u[h, 5 * k[kv_idx] + g[q_idx]]",
         1, true, 2, true},
        {kinds + "buffer t: f32[5, 5] grad\nscore_mod = score + t[g[q_idx], k[kv_idx]]", 1, false,
         1, true},
        // Distances along axes, absolute and clamped.
        {"buffer t: f32[64, 64, H] grad\nscore_mod = score + t[abs(" + of_rows + "), abs(" +
         of_columns + "), h]"},
        {"buffer t: f32[15, H] grad\nbuffer u: bf16[H, 9] grad\nscore_mod = score + t[clamp(" +
             of_rows + ", -7, 7) + 7, h] - 2 * u[h, min(abs(" + of_columns + "), 8)]",
         1, true, 2},
        // A number stored for each pair, some of them outside; all on one entry.
        {"buffer t: f32[H, 4] grad\nbuffer d: i8[B, Q_LEN, KV_LEN]\nscore_mod = score + "
         "t[h, d[b, q_idx, kv_idx]]",
         0x1p-40},
        {"buffer t: f32[40] grad\nbuffer d: i8[Q_LEN, KV_LEN]\nscore_mod = score + "
         "t[max(d[q_idx, kv_idx], 39)]"},
        // Buckets of differences of captured numbers.
        {"buffer t: f32[16, H] grad\nbuffer ts: f32[B, Q_LEN]\nbuffer of: f32[B, KV_LEN]\n"
         "score_mod = score + t[clamp(int(log(max(abs(ts[b, q_idx] - of[b, kv_idx]), 0.01)) / "
         "0.3), 0, 15), h]"},
        // A class token beside an image.
        {"buffer t: f32[" + number((2 * rows - 1) * (2 * w - 1) + 3) +
         ", H] grad\nscore_mod {\n"
         "grid = ((q_idx - 1) // " +
         number(w) + " - (kv_idx - 1) // " + number(w) + ") * " + number(2 * w - 1) +
         " + (q_idx - 1) % " + number(w) + " - (kv_idx - 1) % " + number(w) +
         "\nscore + t[where(q_idx == 0, where(kv_idx == 0, 2, 0), where(kv_idx == 0, 1, grid + "
         "3)), "
         "h]\n}"},
        // Indices that have no room in 32 bits, and those whose sums may have none.
        {kinds + "buffer t: f32[12] grad\nscore_mod = score + t[(g[q_idx] - 1) * 4000000000 + "
                 "k[kv_idx]]"},
        {"buffer g: i32[Q_LEN]\nbuffer k: i32[KV_LEN]\nbuffer t: f32[H, 12] grad\nscore_mod = "
         "score + t[h, g[q_idx] * 2 + k[kv_idx]]"},
        // Indices of one position, which are clamped to 32 bits.
        {"buffer g: i64[Q_LEN]\nbuffer t: f32[9, 9] grad\nscore_mod = score + t[g[q_idx], "
         "g[kv_idx % Q_LEN]]",
         1, true, 1, true},
        {"buffer g: i64[Q_LEN]\nbuffer k: i64[KV_LEN]\nbuffer t: f32[3, H, 5] grad\nscore_mod = "
         "score + t[(g[q_idx] - 1) * 3000000000, h, k[kv_idx] - (k[kv_idx] // 4) * 5000000000]",
         1, true, 1, true},
        // Numbers of a head beside them.
        {kinds + "buffer a: f32[B, H]\nbuffer t: f32[H, 5, 5] grad\nscore_mod = score + a[b, h] * "
                 "t[h, g[q_idx], k[kv_idx]]",
         4, true, 1, true},
        {kinds + "buffer a: f32[H]\nbuffer t: f32[5, 5] grad\nscore_mod = 3 * tanh((score - a[h] * "
                 "t[max(g[q_idx], k[kv_idx]), 1]) / 3)",
         4},
        // Elements that add nothing.
        {kinds + "buffer t: f32[5, 5] grad\nscore_mod = score * 2 + where(q_idx % 7 == 2 or "
                 "k[kv_idx] == 3, 0, t[g[q_idx], k[kv_idx]])"},
        {"buffer t: f32[64, H] grad\nscore_mod = score - where(q_idx > 3, where(kv_idx > 3, "
         "t[abs(" +
         of_columns + "), h], 0), 0) * 3"},
        // The same under what multiplies dS, or beside a number of the head.
        {kinds + "buffer d: i8[Q_LEN, KV_LEN]\nbuffer t: f32[H, 7] grad\nscore_mod = 3 * "
                 "tanh((score + where(d[q_idx, kv_idx] < 3, t[h, d[q_idx, kv_idx] + 1], 0)) / 3)",
         2},
        {kinds + "buffer a: f32[B, H]\nbuffer t: f32[5, 5] grad\nscore_mod = (score - "
                 "where(k[kv_idx] == 2, 0, t[g[q_idx], k[kv_idx]])) * (a[b, h] + 3)"},
        {kinds + "buffer a: f32[H]\nbuffer t: f32[5, 5] grad\nscore_mod = score - where(q_idx % 3 "
                 "== 1, where(kv_idx % 2 == 0, t[g[q_idx], k[kv_idx]], 0), 0) * a[h] * 2"},
        {"buffer t: f32[41] grad\nscore_mod = 4 * sigmoid((score + where(q_idx < 2 or kv_idx < 2, "
         "0, t[clamp(" +
         of_rows + ", -20, 20) + 20])) / 4)"},
        // Entries of which a sample of the rows does not meet all, and more than there is memory
        // for.
        {"buffer t: f32[9000] grad\nscore_mod = score + t[(q_idx * 31 + kv_idx * 17) % 9000]"},
        {"buffer t: f32[9000] grad\nscore_mod = score + t[(q_idx * 31 + kv_idx) % 7 * (kv_idx % 2 "
         "* "
         "1000 + 30)]"},
        {"buffer t: f32[50] grad\nscore_mod = score + t[(q_idx * 31 + kv_idx * 17) % 50]", 1,
         false}};
}

// What the gradient of a read has of dS at an element; nothing where it has none of it.
inline std::optional<double> table_factor_at(const passes::Mod& mod,
                                             const passes::ReadGradient& gradient,
                                             const ir::Environment& at) {
    const ir::NodeId choice = passes::table_choice(mod, gradient);
    if (choice != ir::kNoNode && ir::evaluate_real(mod.program, choice, at) == 0) return {};
    return gradient.sum_factor == ir::kNoNode
               ? passes::table_factor(mod, gradient)
               : ir::evaluate_real(mod.program, gradient.sum_factor, at);
}

// The same of the reads whose gradients are summed as those of tables.
inline FactorOfRead factor_of_tables(const passes::Mod& mod) {
    return [&mod](const passes::ReadGradient& gradient,
                  const ir::Environment& at) -> std::optional<double> {
        if (passes::gradient_sum(mod, gradient, {.sums_tables = true}) !=
            passes::GradientSum::table)
            return {};
        return table_factor_at(mod, gradient, at);
    };
}

// How far a sum may be from the truth: parts of the largest dS for each term and for some more, and
// of the truth.
struct TableTolerance {
    double of_term = 0;
    int more_terms = 0;
    double of_truth = 0;
};
struct ComparedEntries {
    int wrong = 0, added = 0; // added: that have terms
};
inline ComparedEntries compare_entries(const HostArguments& arguments,
                                       const std::vector<std::vector<double>>& gradients,
                                       const std::vector<std::vector<int>>& terms, double largest,
                                       const TableTolerance& tolerance) {
    ComparedEntries compared;
    for (std::size_t buffer = 0; buffer < gradients.size(); ++buffer)
        for (std::size_t i = 0; i < gradients[buffer].size(); ++i) {
            const double truth = gradients[buffer][i];
            const auto sum = static_cast<double>(arguments.gradient(buffer, i));
            compared.added += terms[buffer][i] > 0 ? 1 : 0;
            const double allowed =
                largest * (tolerance.more_terms + terms[buffer][i]) * tolerance.of_term +
                tolerance.of_truth * std::abs(truth);
            if (std::isfinite(truth) ? !(std::abs(truth - sum) <= allowed) : sum != truth)
                ++compared.wrong;
        }
    return compared;
}

} // namespace flexc::test
