// Gradients of tables: random members of the classes whose sums are found in shared memory, and
// programs just outside of them, by Hopper's backward and by generic ones.
#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

#include "api/hopper_check.h"
#include "api/random_choices.h"
#include "bound_extents.h"

using namespace flexc;
using flexc::test::below;
using flexc::test::Case;

namespace {

struct Table {
    std::string text;
    std::map<std::string, std::int64_t> dims = {};
    int offset_step = 1; // of positions
    bool has_block_mask = false;
    bool any_backward = false; // Hopper's spills at wide heads
};

Case case_of(const Table& table, DType dtype, int head_dim) {
    Case one = {.text = table.text, .dtype = dtype, .batch = 2, .heads = 4, .kv_heads = 2};
    one.dims = table.dims;
    one.head_dim = head_dim;
    one.q_len = 130 + below(150);
    one.kv_len = 140 + below(200);
    one.q_offset = below(2) * below(90);
    one.q_offset -= one.q_offset % table.offset_step;
    one.with_d_lse = below(2) == 0;
    if (!table.any_backward) one.backward_kernel = BackwardKernel::specialized;
    one.integers["g"] = [](std::int64_t i) { return i * 7 % 11 % 5; };
    one.integers["k"] = [](std::int64_t i) { return i * 5 % 13 % 5; };
    one.integers["d"] = [](std::int64_t i) { return i * 31 % 97; };
    // Some are further apart than 31 bits hold.
    one.integers["stamps"] = [](std::int64_t i) {
        constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
        return i % 37 == 5 ? kMost : i % 41 == 7 ? -kMost - 1 : i * 37 % 3001;
    };
    one.integers["same"] = [](std::int64_t) { return 3; };
    one.reals["ts"] = [](std::int64_t i) { return static_cast<double>(i * 37 % 300); };
    return one;
}

std::string number(int x) { return std::to_string(x); }

void check(const std::vector<Table>& tables) {
    int at = 0;
    for (const Table& table : tables)
        for (const DType dtype : {DType::bf16, DType::f16}) {
            constexpr int kHeadDims[] = {64, 128, 40, 192};
            test::check_on_hopper(case_of(table, dtype, kHeadDims[at++ % 4]));
        }
}

std::vector<Table> grids() {
    std::vector<Table> tables;
    for (int i = 0; i < 6; ++i) {
        // Digits of grids begin elsewhere than at multiples of eight, and may be of few positions.
        const int w = 5 + 2 * below(14), rows = 480 / w + 2;
        const std::string of_rows = "q_idx // " + number(w) + " - kv_idx // " + number(w);
        const std::string of_columns = "q_idx % " + number(w) + " - kv_idx % " + number(w);
        switch (i % 3) {
        case 0:
            tables.push_back({"buffer t: f32[H, " + number(2 * rows - 1) + ", " +
                              number(2 * w - 1) + "] grad\nscore_mod = score + t[h, " + of_rows +
                              " + " + number(rows - 1) + ", " + of_columns + " + " + number(w - 1) +
                              "]"});
            break;
        case 1:
            tables.push_back(
                {"buffer r: bf16[H, 9] grad\nbuffer c: f32[N, H] grad\nscore_mod = score * 0.5 + "
                 "r[h, min(abs(" +
                     of_rows + "), 8)] + c[min(abs(" + of_columns + "), 30), h]\n" +
                     "mask_mod = q_idx + 90 >= kv_idx",
                 {{"N", 31}}});
            break;
        default:
            tables.push_back({"buffer t: f32[B, N, N] grad\nscore_mod = score + t[b, clamp(" +
                                  of_rows + ", -7, 7) + 7, clamp(" + of_columns + ", -7, 7) + 7]",
                              {{"N", 15}}});
        }
    }
    tables.push_back({"buffer t: f32[H, 41, 9, 11] grad\nscore_mod = score + t[h, q_idx // 30 - "
                      "kv_idx // 30 + 20, q_idx // 6 % 5 - kv_idx // 6 % 5 + 4, q_idx % 6 - kv_idx "
                      "% 6 + 5]"});
    return tables;
}

std::vector<Table> aligned_grids() {
    std::vector<Table> tables;
    for (int i = 0; i < 8; ++i) {
        const int w = 8 * (1 + below(12)), rows = 480 / w + 2;
        const std::string of_rows = "q_idx // " + number(w) + " - kv_idx // " + number(w);
        const std::string of_columns = "q_idx % " + number(w) + " - kv_idx % " + number(w);
        Table table{"", {}, 8};
        switch (i % 4) {
        case 0:
            // Not all of it is inside.
            table.text = "buffer t: f32[H, " + number(2 * rows - 1) +
                         ", 90] grad\nscore_mod = " + "score + t[h, " + of_rows + " + " +
                         number(rows - 1) + ", " + of_columns + " + 50]";
            break;
        case 1:
            table.text = "buffer r: bf16[H, 200] grad\nbuffer c: f32[N, H] grad\nbuffer d: f32[H, "
                         "M] grad\nscore_mod = score * 0.5 + r[h, min(abs(" +
                         of_rows + "), 199)] - 2 * c[min(abs(" + of_columns +
                         "), 30), h] + d[h, min(abs(q_idx - kv_idx), 90)]\nmask_mod = q_idx + 90 "
                         ">= kv_idx";
            table.dims = {{"N", 31}, {"M", 91}};
            break;
        case 2:
            table.text = "buffer a: f32[H, 16] grad\nbuffer s: f32[H] grad\nscore_mod = 8 * "
                         "tanh((score + tanh(s[h]) * a[h, min(abs(" +
                         of_columns +
                         "), 15)]) / 8)\nmask_mod = (q_idx // 40) % 2 == (kv_idx // "
                         "40) % 2";
            table.has_block_mask = true;
            break;
        default:
            table.text = "buffer t: f32[H, 61, 9, 31] grad\nscore_mod = score + t[h, q_idx // 80 - "
                         "kv_idx // 80 + 30, q_idx // 16 % 5 - kv_idx // 16 % 5 + 4, q_idx % 16 - "
                         "kv_idx % 16 + 15]";
        }
        tables.push_back(std::move(table));
    }
    return tables;
}

std::vector<Table> kinds_and_buckets() {
    return {
        {"buffer t: f32[5, 5, H] grad\nbuffer g: i32[B, Q_LEN]\nbuffer k: i32[KV_LEN]\n"
         "score_mod = score + t[g[b, q_idx % Q_LEN], k[kv_idx], h]"},
        {"buffer t: f32[K, K] grad\nbuffer g: i32[Q_LEN]\nbuffer k: i32[B, KV_LEN]\n"
         "score_mod = 20 * tanh((score + t[k[b, kv_idx], g[q_idx]]) / 20)\n"
         "mask_mod = q_idx >= kv_idx - 40",
         {{"K", 5}}},
        {"buffer t: f32[16] grad\nbuffer ts: f32[B, 500]\nscore_mod = score + t[clamp(int(log("
         "max(abs(ts[b, q_idx] - ts[b, kv_idx]), 1.0)) / 0.4), 0, 15)]"},
        {"buffer t: f32[" + number(2 + below(60)) +
             ", H] grad\nbuffer ts: f32[B, 900]\nscore_mod = " +
             "score + t[min(int(sqrt(abs(ts[b, q_idx] - ts[b, kv_idx]) * 3.7)), " +
             number(below(60)) + "), h]\nmask_mod = q_idx + 90 >= kv_idx",
         {},
         1,
         false,
         true},
        {"buffer t: bf16[H, 97] grad\nbuffer d: i32[B, Q_LEN, KV_LEN]\n"
         "score_mod = score + t[h, d[b, q_idx, kv_idx]]"},
        // All elements on one entry.
        {"buffer t: f32[H, 8] grad\nbuffer same: i32[Q_LEN, KV_LEN]\n"
         "score_mod = score - t[h, same[q_idx, kv_idx]]"},
        {"buffer t: f32[700] grad\nscore_mod = score + t[(q_idx * 31 + kv_idx * 17) % 700]"},
        {"buffer t: f32[9000] grad\nscore_mod = score + t[(q_idx * 311 + kv_idx * 173) % 9000]"},
        {"buffer t: f32[N, M] grad\nscore_mod = score + t[q_idx // 3, kv_idx // 5]",
         {{"N", 100}, {"M", 70}}},
    };
}

// Of indices that each element computes, where products are added to what is read, or that are
// stored for pairs.
std::vector<Table> element_indices() {
    const std::string stamps = "buffer stamps: i32[B, 900]\n";
    const std::string roots = "buffer t: f32[" + number(2 + below(60)) + ", H]\n" + stamps +
                              "score_mod = score + t[min(int(sqrt(abs(stamps[b, q_idx] - "
                              "stamps[b, kv_idx]))), " +
                              number(below(60)) + "), h]";
    const std::string pairs = "buffer t: f32[B, H, 64]\nbuffer d: i32[Q_LEN, KV_LEN]\n";
    // Of points in space, whose places in tables take many instructions.
    const auto axes = [](const std::string& before, const std::string& after) {
        std::string text = "buffer t: f32[H, 3, 33]\nbuffer x: f32[B, 900, 3]\nscore_mod = score";
        for (const std::string i : {"0", "1", "2"})
            text += " + t[h, " + i + ", " + before + "x[b, q_idx, " + i + "] - x[b, kv_idx, " + i +
                    "]" + after + "]";
        return text;
    };
    return {
        {.text = axes("clamp(int(floor((", ") / 0.25)) + 16, 0, 32)"), .any_backward = true},
        {.text = axes("min(int(log(1 + abs(", ")) * 7), 32)") + "\nmask_mod = q_idx + 60 >= kv_idx",
         .any_backward = true},
        {.text = roots + (below(2) == 0 ? "" : "\nmask_mod = q_idx + 60 >= kv_idx"),
         .any_backward = true},
        // Of two tables, one by indices that need no 64 bits.
        {.text = "buffer t: f32[H, 40]\nbuffer u: f32[H, 33]\nbuffer k: i32[KV_LEN]\n" + stamps +
                 "score_mod = score + where(kv_idx % 5 == 2, 0, t[h, min(abs(stamps[b, q_idx] - "
                 "stamps[b, kv_idx]), 39)]) - u[h, clamp(k[q_idx % KV_LEN] - k[kv_idx], -16, 16) + "
                 "16]\nmask_mod = q_idx + 60 >= kv_idx",
         .any_backward = true},
        {.text = pairs + "score_mod = score + t[b, h, d[q_idx, kv_idx]]", .any_backward = true},
        {.text = pairs + "score_mod = score - " + number(1 + below(3)) +
                 " * t[b, h, d[q_idx, kv_idx] // 2]\nmask_mod = q_idx >= kv_idx",
         .any_backward = true},
    };
}

std::vector<Table> mixtures() {
    return {
        {"buffer t: f32[H, 10, 9] grad\nscore_mod = score + t[h, q_idx // 16 - kv_idx // 16 + 5, "
         "q_idx % 16 - kv_idx % 16 + 4]"},
        {"buffer t: f32[12] grad\nbuffer g: i32[Q_LEN]\nbuffer k: i32[KV_LEN]\n"
         "score_mod = score + t[g[q_idx] * 4 + k[kv_idx] - 3]"},
        {"buffer t: f32[H, 5, 5] grad\nbuffer u: f32[H, 21] grad\nbuffer g: i32[Q_LEN]\nbuffer k: "
         "i32[KV_LEN]\nbuffer c: f32[KV_LEN] grad\nbuffer a: f32[H] grad\nscore_mod = score * a[h] "
         "+ t[h, g[q_idx], k[kv_idx]] + u[h, min(abs(q_idx // 9 - kv_idx // 9), 20)] + c[kv_idx]"},
        {"buffer t: f32[H, 5, 5] grad\nbuffer g: i32[Q_LEN]\nbuffer k: i32[KV_LEN]\nscore_mod = "
         "score * t[h, g[q_idx], k[kv_idx]] + t[h, k[kv_idx], g[q_idx]]"},
        {"buffer t: f32[H, 25] grad\nbuffer g: i32[Q_LEN]\nbuffer k: i32[KV_LEN]\nscore_mod = "
         "score + t[h, g[q_idx] * 5 + k[kv_idx]] + 0.1 * t[h, 24 - g[q_idx] - k[kv_idx]]\n"
         "mask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2"},
        {"buffer t: f32[H, 5, 5] grad\nbuffer g: i32[Q_LEN]\nbuffer k: i32[KV_LEN]\nscore_mod = "
         "score "
         "+ where(q_idx % 7 == 2 or k[kv_idx] == 3, 0, t[h, g[q_idx], k[kv_idx]])"},
    };
}

std::vector<Table> factors() {
    const std::string grid = "t[h, q_idx // 16 - kv_idx // 16 + 21, q_idx % 16 - kv_idx % 16 + 15]";
    const std::string buffers =
        "buffer a: f32[H] grad\nbuffer t: f32[H, 43, 31] grad\nscore_mod = ";
    return {
        {buffers + "score * exp(min(a[h], 4.6)) + " + grid, {}, 8},
        {buffers + "score * a[h] + a[h] * " + grid + "\nmask_mod = q_idx >= kv_idx - 50", {}, 8},
        {buffers + "8 * tanh((score - a[h] * " + grid + ") / 8)", {}, 8},
        {"buffer a: f32[B, H] grad\nbuffer t: f32[5, 5, H] grad\nbuffer g: i32[B, Q_LEN]\nbuffer "
         "k: "
         "i32[KV_LEN]\nscore_mod = score + tanh(a[b, h]) * t[g[b, q_idx], k[kv_idx], h]"},
    };
}

// Of which elements compute entries, so that those that have dS add it to copies of all entries: of
// any number of entries, often met or not, in or out of the buffer.
std::vector<Table> copied_entries() {
    const std::string stamps = "buffer s: i32[B, 900]\nbuffer p: i32[B, 900]\n";
    const std::string pairs = "buffer d: i32[B, Q_LEN, KV_LEN]\n";
    const auto type = [] {
        return std::string(below(2) == 0 ? "f32" : below(2) == 0 ? "f16" : "bf16");
    };
    const std::string count = number(2 + below(1500)), few = number(1 + below(40));
    const std::string bucket = "min(abs(s[b, q_idx] - p[b, kv_idx]), " + few + ")";
    const std::string clamped =
        "clamp(s[b, kv_idx] - p[b, q_idx], -" + few + ", " + few + ") + " + few;
    const int w = 3 + below(70), rows = 480 / w + 2;
    const std::string image = "(q_idx - 1) // " + number(w) + " - (kv_idx - 1) // " + number(w) +
                              " + " + number(rows) + ") * " + number(2 * w - 1) +
                              " + (q_idx - 1) % " + number(w) + " - (kv_idx - 1) % " + number(w) +
                              " + " + number(w - 1);
    const std::string with_token =
        "buffer t: " + type() + "[H, " + number(2 * (rows + 1) * (2 * w - 1) + 3) +
        "] grad\nscore_mod = score + t[h, where(q_idx == 0 or kv_idx == 0, 0, (" + image + ")]";
    return {
        {stamps + "buffer t: " + type() + "[H, " + number(1 + below(40)) +
         "] grad\nscore_mod = score + t[h, " + bucket + "]"},
        {stamps + "buffer t: " + type() + "[" + count + ", H] grad\nscore_mod = score - 0.5 * t[" +
         clamped + ", h]\nmask_mod = q_idx + 60 >= kv_idx"},
        {with_token},
        {with_token + "\nmask_mod = abs(q_idx - kv_idx) < 70"},
        {.text = with_token + "\nmask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2",
         .has_block_mask = true},
        {pairs + "buffer t: " + type() + "[H, " + count +
         "] grad\nscore_mod = score + t[h, d[b, q_idx, kv_idx] * " + number(1 + below(20)) + " - " +
         number(below(60)) + "]"},
        // All on one entry, and a factor of the head.
        {"buffer t: f32[H, 8] grad\nbuffer a: f32[H]\nbuffer same: i32[Q_LEN, KV_LEN]\n"
         "score_mod = 8 * tanh((score - a[h] * t[h, same[q_idx, kv_idx]]) / 8)"},
        // Several tables, numbers of a head, and elements that add nothing.
        {stamps + "buffer t: f32[H, " + number(2 + below(60)) +
         "] grad\nbuffer u: f16[9, 9, H] grad\n"
         "buffer v: f32[H] grad\nscore_mod = score + where(q_idx == 0 or kv_idx == 0, v[h], t[h, " +
         bucket + "]) + u[q_idx // 7 % 9, kv_idx // 5 % 9, h]"},
        // More entries than the first kernel has room for.
        {"buffer t: " + type() +
         "[H, 15013] grad\nscore_mod = score + t[h, (q_idx * 311 + kv_idx * 173) % 15013]"},
        // Sums of other kinds.
        {pairs + "buffer t: f32[H, " + count + "] grad\nbuffer r: " + type() +
         "[H, 61] grad\nscore_mod = score + t[h, d[b, q_idx, kv_idx]] + r[h, min(abs(q_idx - "
         "kv_idx), 60)]"},
        {stamps + "buffer t: f32[H, " + count +
         "] grad\nbuffer a: f32[H] grad\nbuffer r: f32[H, 61] grad\n"
         "score_mod = (1 - sigmoid(a[h])) * score + sigmoid(a[h]) * r[h, min(abs(q_idx - kv_idx), "
         "60)] + "
         "t[h, " +
         clamped + "]"},
        {stamps + "buffer t: f32[H, " + count +
         "] grad\nbuffer c: f32[H, KV_LEN] grad\nbuffer m: bf16[H, Q_LEN, "
         "KV_LEN] grad\nscore_mod = score + t[h, " +
         bucket + "] + c[h, kv_idx] + m[h, q_idx, kv_idx]"},
    };
}

Case case_of_entries(const Table& table, DType dtype) {
    constexpr int kHeadDims[] = {64, 128, 64, 128, 40, 96, 192};
    Case one = case_of(table, dtype, kHeadDims[below(7)]);
    one.q_len = 1 + below(330);
    one.kv_len = 1 + below(330);
    one.f32_outputs = one.accumulates = below(4) == 0;
    one.backward_kernel = BackwardKernel::automatic;
    one.integers["s"] = [](std::int64_t i) { return i * 37 % 301; };
    one.integers["p"] = [](std::int64_t i) { return i * 53 % 307; };
    return one;
}

// Of which elements add something else than a multiple of dS.
std::vector<Table> weighted() {
    const std::string kinds = "buffer g: i32[B, Q_LEN]\nbuffer k: i32[KV_LEN]\n";
    const std::string of_queries = number(1 + below(2)), of_keys = number(below(3)),
                      extents = number(6 + below(20)) + ", " + number(5 + below(20));
    const std::string pair = "t[h, g[b, q_idx] * " + of_queries + ", k[kv_idx] + " + of_keys + "]";
    const std::string table = kinds + "buffer t: f32[H, " + extents + "] grad\n";
    const int w = 5 + below(30);
    const std::string digits = "t[h, q_idx // " + number(w) + " - kv_idx // " + number(w) +
                               " + 99, q_idx % " + number(w) + " - kv_idx % " + number(w) + " + " +
                               number(w - 1) + "]";
    const std::string grid = "buffer t: bf16[H, 199, " + number(2 * w - 1) + "] grad\n";
    return {
        // Some kinds are outside.
        {table + "score_mod = score * " + pair},
        {table + "score_mod = score * " + pair + "\nmask_mod = q_idx + 60 >= kv_idx"},
        {.text = table + "score_mod = score * " + pair +
                 "\nmask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2",
         .has_block_mask = true},
        {table + "score_mod = 8 * tanh(score * (1 + " + pair + ") / 8)"},
        {table + "buffer w: f32[H, Q_LEN] grad\nscore_mod = score + w[h, q_idx % Q_LEN] * " + pair},
        {table +
         "buffer c: f32[KV_LEN] grad\nbuffer a: f32[H] grad\nscore_mod = a[h] * score + "
         "c[kv_idx] * exp(" +
         pair + ")"},
        // One partial for both, or one for each, of which elements add the second to memory.
        {table + "buffer u: f32[9, H] grad\nscore_mod = score * (" + pair +
         " + u[min(abs(q_idx // 9 - kv_idx // 9), 8), h])"},
        {table + "score_mod = score * " + pair + " + t[h, k[kv_idx], g[b, q_idx]]"},
        {grid + "score_mod = score * " + digits},
        {grid + "score_mod = tanh(score) + " + digits + "\nmask_mod = q_idx >= kv_idx - 20"},
        // All elements on one entry.
        {"buffer t: f32[H, 8] grad\nbuffer same: i32[Q_LEN, KV_LEN]\n"
         "score_mod = score * t[h, same[q_idx, kv_idx]]"},
        {"buffer t: f32[B, 97] grad\nbuffer d: i32[B, Q_LEN, KV_LEN]\n"
         "score_mod = score * where(q_idx % 5 == 3, 0.5, t[b, d[b, q_idx, kv_idx]])"},
        {"buffer t: f32[9000] grad\nscore_mod = score * t[(q_idx * 311 + kv_idx * 173) % 9000]"},
    };
}

void check_weighted(std::size_t first, std::size_t end) {
    constexpr int kHeadDims[] = {64, 128, 40, 96};
    int at = below(4);
    for (std::size_t i = first; i < end; ++i)
        for (const DType dtype : {DType::bf16, DType::f16})
            test::check_on_hopper(case_of(weighted()[i], dtype, kHeadDims[at++ % 4]));
}

std::vector<Table> reads_alone() {
    const std::string kinds = "buffer g: i32[B, Q_LEN]\nbuffer k: i32[KV_LEN]\n";
    return {
        {"buffer t: f32[H, 127, 127]\nscore_mod = score + t[h, q_idx // 64 - kv_idx // 64 + 63, "
         "q_idx % 64 - kv_idx % 64 + 63]"},
        {kinds + "buffer t: f32[N, N, H]\nscore_mod = score + t[g[b, q_idx], k[kv_idx], h]",
         {{"N", 5}}},
        // Some kinds are outside, or all words are too few.
        {kinds + "buffer t: f16[H, N, N]\nscore_mod = score + t[h, g[b, q_idx], k[kv_idx]]",
         {{"N", 4}}},
        {kinds + "buffer t: f32[N, N]\nscore_mod = score + t[g[b, q_idx], k[kv_idx]]", {{"N", 90}}},
        {.text = "buffer t: f32[B, H, 64]\nbuffer d: i32[Q_LEN, KV_LEN]\nscore_mod = score * 0.5 + "
                 "t[b, h, d[q_idx, kv_idx]]\nmask_mod = q_idx >= kv_idx",
         .any_backward = true},
        {"buffer t: bf16[200]\nbuffer ts: f32[B, 500]\nscore_mod = score + t[clamp(int(log("
         "max(abs(ts[b, q_idx] - ts[b, kv_idx]), 1.0)) / 0.031), 3, 190)]"},
        {kinds + "buffer t: f32[H, 5, 5]\nbuffer u: f32[H, 30]\nbuffer m: bf16[H, Q_LEN, KV_LEN]\n"
                 "score_mod = score + t[h, g[b, q_idx], k[kv_idx]] + u[h, min(abs(q_idx // 9 - "
                 "kv_idx // 9), 29)] + m[h, q_idx, kv_idx]"},
        {"buffer t: f32[H, 401]\nscore_mod = 30 * tanh((score + t[h, where(q_idx == 0 or kv_idx "
         "== 0, 400, min(abs(q_idx // 3 - kv_idx // 3), 399))]) / 30)"},
        {"buffer t: f32[H, 9, 3]\nscore_mod = score + t[h, clamp(q_idx // 12 - kv_idx // 12 + 4, "
         "0, 8), q_idx % 2 - kv_idx % 2 + 1]\nmask_mod = (q_idx // 30) % 3 != (kv_idx // 50) % 3"},
    };
}

// Lists of these by generic kernels, each once: of every type, and head dims whose tiles are not
// alike.
void check_generic(const std::vector<Table>& tables) {
    constexpr DType kTypes[] = {DType::bf16, DType::f16, DType::f32};
    constexpr int kHeadDims[] = {64, 128, 40, 192, 80};
    static int at = 0;
    for (const Table& table : tables) {
        Case one = case_of(table, kTypes[at % 3], kHeadDims[at % 5]);
        ++at;
        one.forward_kernel = ForwardKernel::generic;
        one.backward_kernel = BackwardKernel::generic;
        test::check_on_gpu(one);
    }
}

// Of which Hopper's backward sums one way, and generic kernels as tables, or along rows and columns
// of a tile.
std::vector<Table> distances_and_rows() {
    return {
        {"buffer a: f32[H, 64] grad\nbuffer c: f32[H, 64] grad\nscore_mod = score + where(q_idx >= "
         "kv_idx, a[h, min(q_idx - kv_idx, 63)], c[h, min(kv_idx - q_idx, 63)])"},
        {"buffer t: f32[H, 64] grad\nbuffer w: f32[B, H, Q_LEN] grad\nscore_mod = score + "
         "w[b, h, q_idx % Q_LEN] * t[h, clamp(kv_idx - q_idx, -31, 32) + 31]"},
        {"buffer t: f32[H, 257] grad\nscore_mod = score * t[h, min(abs(q_idx - kv_idx), 256)]\n"
         "mask_mod = q_idx + 60 >= kv_idx"},
        {"buffer g: i32[B, Q_LEN]\nbuffer t: f32[H, 128] grad\nscore_mod = score + where(g[b, "
         "q_idx "
         "% Q_LEN] == g[b, kv_idx % Q_LEN], t[h, min(abs(q_idx - kv_idx), 127)], 0.0)"},
        {"buffer v: f32[B, H, KV_LEN] grad\nbuffer r: f32[B, H, Q_LEN] grad\n"
         "score_mod = score * v[b, h, kv_idx] * r[b, h, q_idx % Q_LEN]"},
        {"buffer u: f32[H, Q_LEN, 2] grad\nbuffer v: f32[H, KV_LEN, 2] grad\nscore_mod = score + "
         "sum(i in 0..2: u[h, q_idx % Q_LEN, i] * v[h, kv_idx, i])\nmask_mod = q_idx + 60 >= "
         "kv_idx"},
        {"buffer t: f32[H, 640] grad\nscore_mod = score + t[h, q_idx - kv_idx + 340]"},
        // Hidden elements have no entries.
        {"buffer t: f32[H, 640] grad\nscore_mod = score + t[h, q_idx - kv_idx]\n"
         "mask_mod = q_idx >= kv_idx"},
        {"buffer t: f32[32, H] grad\nbuffer a: f32[H]\nscore_mod = score + a[h] * "
         "t[min(int(log(abs(q_idx - kv_idx) + 1) * 5), 31), h]"},
        {"buffer t: f32[H, 20000] grad\nscore_mod = score - 2 * t[h, 20 * abs(q_idx - kv_idx)]"},
        {"buffer k: bf16[B, H, KV_LEN] grad\nbuffer r: f32[H, Q_LEN] grad\n"
         "score_mod = 0.5 * (score + k[b, h, kv_idx] + r[h, q_idx % Q_LEN])"},
        {"buffer k: f32[KV_LEN] grad\nbuffer t: f32[H, 9] grad\nbuffer m: f32[Q_LEN, KV_LEN] grad\n"
         "score_mod = score + where(kv_idx % 3 == 1, 0, k[kv_idx]) + t[h, min(abs(q_idx - kv_idx), "
         "8)] + m[q_idx % Q_LEN, kv_idx]\nmask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2"},
    };
}

// Of which Hopper's backward sums as tables what it sums over diagonals elsewhere.
std::vector<Table> tables_beside_distances() {
    const std::string kinds = "buffer t: f32[H, 5, 5] grad\nbuffer g: i32[Q_LEN]\nbuffer k: "
                              "i32[KV_LEN]\nbuffer r: bf16[640, H] grad\nscore_mod = score + "
                              "t[h, g[q_idx], k[kv_idx]] ";
    return {
        {kinds + "+ r[q_idx - kv_idx + 340, h]\nmask_mod = q_idx + 60 >= kv_idx"},
        {kinds + "- 0.5 * r[min(int(log(abs(q_idx - kv_idx) + 1) * 5), 31), h]"},
        {"buffer w: f32[64, H] grad\nbuffer ts: f32[B, N]\nbuffer a: f32[H]\nbuffer r: f32[H, "
         "257] grad\nbuffer c: f32[H, N] grad\nscore_mod = score + w[min(int(sqrt(abs(ts[b, q_idx "
         "% N] - ts[b, kv_idx]))), 63), h] + a[h] * r[h, clamp(q_idx - kv_idx, -128, 128) + 128] + "
         "c[h, kv_idx]",
         {{"N", 350}}},
    };
}

// Of an image of this width, after some tokens.
struct Image {
    int w, rows;
    std::string tokens, of_rows, of_columns;
    explicit Image(int width, int first = below(7))
        : w(width), rows(480 / width + 3), tokens(number(first)), of_rows(difference(" // ")),
          of_columns(difference(" % ")) {}
    std::string buffer() const {
        return "buffer t: f32[H, " + number(2 * rows + 1) + ", " + number(2 * w - 1) + "] grad\n";
    }
    std::string read() const {
        return "t[h, " + of_rows + " + " + number(rows) + ", " + of_columns + " + " +
               number(w - 1) + "]";
    }

  private:
    std::string difference(const std::string& digit) const {
        const std::string of = " - " + tokens + ")" + digit + number(w);
        return "(q_idx" + of + " - (kv_idx" + of;
    }
};

// In an order too. Under a block mask only split kernels add in one.
void check_in_order(const std::vector<Table>& tables) {
    check(tables);
    for (const Table& table : tables) {
        Case one = case_of(table, DType::bf16, 64);
        one.deterministic = true;
        if (table.has_block_mask) one.backward_kernel = BackwardKernel::automatic;
        test::check_on_hopper(one);
    }
}

} // namespace

TEST_CASE("generic tables: grids" * doctest::skip()) { check_generic(grids()); }

TEST_CASE("generic tables: grids whose digits begin at multiples of eight" * doctest::skip()) {
    check_generic(aligned_grids());
}

TEST_CASE("generic tables: kinds, buckets and numbers of pairs" * doctest::skip()) {
    check_generic(kinds_and_buckets());
}

TEST_CASE("generic tables: indices outside, several tables, other gradients beside them" *
          doctest::skip()) {
    check_generic(mixtures());
}

TEST_CASE("generic tables: numbers of a head beside them" * doctest::skip()) {
    check_generic(factors());
}

TEST_CASE("generic tables: distances, queries and keys" * doctest::skip()) {
    check_generic(distances_and_rows());
}

TEST_CASE("generic tables: beside distances" * doctest::skip()) {
    check_generic(tables_beside_distances());
}

TEST_CASE("generic tables: elements times something of their own" * doctest::skip()) {
    check_generic(weighted());
}

TEST_CASE("generic tables: in an order" * doctest::skip()) {
    for (const Table& table : distances_and_rows()) {
        Case one = case_of(table, DType::bf16, 64);
        one.backward_kernel = BackwardKernel::generic;
        one.deterministic = true;
        one.runs = 2;
        test::check_on_gpu(one);
    }
}

TEST_SUITE_BEGIN("hopper");

TEST_CASE("tables: grids of two and three axes" * doctest::skip()) { check(grids()); }

TEST_CASE("tables: grids whose digits begin at multiples of eight" * doctest::skip()) {
    const std::vector<Table> tables = aligned_grids();
    check_in_order(tables);
    // Where positions begin elsewhere, sums by blocks of eight have other kernels.
    Case shifted = case_of(tables[0], DType::bf16, 64);
    shifted.backward_kernel = BackwardKernel::automatic;
    shifted.q_offset = 13;
    test::check_on_hopper(shifted);
}

TEST_CASE("tables: grids whose digits begin anywhere" * doctest::skip()) {
    const Image image(9 + 2 * below(30)), axes(8 + below(60));
    check_in_order({
        {.text = image.buffer() + "score_mod = 20 * tanh((score + " + image.read() +
                 ") / 20)\nmask_mod = q_idx + 90 >= kv_idx",
         .any_backward = true},
        {image.buffer() + "score_mod = score + " + image.read() +
         "\nmask_mod = q_idx + 90 >= kv_idx"},
        {"buffer r: bf16[H, 200] grad\nbuffer c: f32[N, H] grad\nbuffer s: f32[H] grad\nscore_mod "
         "= score * exp(min(s[h], 4)) + r[h, min(abs(" +
             axes.of_rows + "), 199)] - 2 * c[min(abs(" + axes.of_columns +
             "), 30), h]\nmask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2",
         {{"N", 31}},
         1,
         true},
    });
}

TEST_CASE("tables: grids with tokens beside them" * doctest::skip()) {
    std::vector<Table> tables;
    for (const Image& image : {Image(14, 1), Image(8 + below(60))})
        tables.push_back({image.buffer() + "score_mod = score + where(q_idx < " + image.tokens +
                          " or kv_idx < " + image.tokens + ", 0.0, " + image.read() + ")"});
    // Any queries, and any keys.
    const Image image(8 + below(60));
    tables.push_back({image.buffer() +
                      "buffer k: i32[KV_LEN]\nbuffer a: f32[H, Q_LEN] grad\nscore_mod = score + "
                      "a[h, q_idx % Q_LEN] + where(k[kv_idx % KV_LEN] == 3, 0, where(q_idx % 5 == "
                      "2, 0, 0.5 * " +
                      image.read() + "))"});
    check_in_order(tables);
}

TEST_CASE("tables: images of any width, and tokens before them, by tiles of keys" *
          doctest::skip()) {
    std::vector<Table> tables;
    for (const Image& image :
         {Image(14, 0), Image(37, 0), Image(12), Image(7), Image(9 + below(60))})
        tables.push_back({image.buffer() + "score_mod = score + " + image.read()});
    for (const Image& image : {Image(14, 1), Image(37, 1), Image(64, 1), Image(9 + below(60))})
        tables.push_back({image.buffer() + "score_mod = score + where(q_idx < " + image.tokens +
                          " or kv_idx < " + image.tokens + ", 0, " + image.read() + ")"});
    // What tokens have, other choices and masks.
    const Image image(8 + below(60), 1);
    tables.push_back({image.buffer() +
                      "buffer c: f32[3, H]\nscore_mod = score + where(q_idx == 0 and kv_idx == 0, "
                      "c[0, h], where(q_idx == 0, c[1, h], where(kv_idx == 0, c[2, h], " +
                      image.read() + ")))"});
    tables.push_back({image.buffer() + "score_mod = score + where(kv_idx % 9 == 4, -inf, " +
                      image.read() + ")\nmask_mod = abs(q_idx - kv_idx) < 100"});
    for (Table& table : tables)
        table.text.erase(table.text.find(" grad"), 5);
    check(tables);
}

TEST_CASE("tables: kinds, buckets and numbers of pairs" * doctest::skip()) {
    check(kinds_and_buckets());
}

TEST_CASE("tables: indices of elements" * doctest::skip()) {
    constexpr int kHeadDims[] = {64, 128, 40, 96};
    for (const Table& table : element_indices())
        test::check_on_hopper(
            case_of(table, below(2) == 0 ? DType::bf16 : DType::f16, kHeadDims[below(4)]));
}

TEST_CASE("tables: indices outside, several tables, other gradients beside them" *
          doctest::skip()) {
    check(mixtures());
}

TEST_CASE("tables: entries that elements compute" * doctest::skip()) {
    for (const Table& table : copied_entries())
        for (const DType dtype : {DType::bf16, DType::f16})
            test::check_on_hopper(case_of_entries(table, dtype));
}

TEST_CASE("tables: entries of which calls say how many there are" * doctest::skip()) {
    for (const Table& table : copied_entries()) {
        const auto [text, sizes] = test::with_bound_extents(table.text, below);
        Case one = case_of_entries(table, below(2) == 0 ? DType::bf16 : DType::f16);
        one.text = text;
        for (std::size_t i = 0; i < sizes.size(); ++i)
            one.dims["N" + std::to_string(i)] = sizes[i];
        one.deterministic = below(6) == 0;
        test::check_on_hopper(one);
    }
    // One entry, as many as kernels have room for, and more; some indices outside.
    const Table table{
        "buffer t: f32[H, N] grad\nscore_mod = score + t[h, (q_idx * 311 + kv_idx * 173) % 31000 - "
        "500]\nmask_mod = (q_idx // 40) % 2 == (kv_idx // 40) % 2"};
    for (const int entries : {1, 2, 5000, 8019, 8020, 24000, 28499, 28500, 30000}) {
        Case one = case_of_entries(table, DType::bf16);
        one.dims["N"] = entries;
        if (below(2) == 0) one.text.erase(one.text.find("\nmask_mod"));
        test::check_on_hopper(one);
    }
}

TEST_CASE("tables: numbers of a head beside them" * doctest::skip()) { check(factors()); }

TEST_CASE("tables: beside dense biases" * doctest::skip()) {
    const std::string kinds = "buffer t: f32[H, 5, 5] grad\nbuffer g: i32[B, Q_LEN]\nbuffer k: "
                              "i32[KV_LEN]\nbuffer m: bf16[H, Q_LEN, KV_LEN] grad\n",
                      read = "t[h, g[b, q_idx], k[kv_idx]] + m[h, q_idx, kv_idx]";
    const std::vector<Table> tables = {
        {kinds + "score_mod = score + " + read},
        {kinds + "score_mod = 8 * tanh((score + " + read +
         ") / 8)\nmask_mod = q_idx + 60 >= kv_idx"},
        {"buffer d: i32[Q_LEN, KV_LEN]\nbuffer t: f32[97, H] grad\nbuffer m: f16[B, Q_LEN, KV_LEN] "
         "grad\nbuffer n: f32[Q_LEN, KV_LEN] grad\nscore_mod = score + t[d[q_idx, kv_idx], h] + "
         "m[b, q_idx, kv_idx] + n[q_idx, kv_idx]"},
    };
    constexpr int kHeadDims[] = {64, 128, 40, 96};
    int at = 0;
    for (const Table& table : tables)
        for (const std::int64_t keys : {256, 260, 131, 1}) {
            Case one =
                case_of(table, below(2) == 0 ? DType::bf16 : DType::f16, kHeadDims[at++ % 4]);
            one.q_offset = 0;
            one.kv_len = keys;
            test::check_on_hopper(one);
        }
}

TEST_CASE("tables: elements times something of their own, by kinds" * doctest::skip()) {
    check_weighted(0, 4);
    Case one = case_of(weighted()[0], DType::bf16, 64);
    one.deterministic = true;
    test::check_on_hopper(one);
}

TEST_CASE("tables: elements times something of their own, beside others" * doctest::skip()) {
    check_weighted(4, 8);
}

TEST_CASE("tables: elements times something of their own, by any index" * doctest::skip()) {
    check_weighted(8, weighted().size());
}

TEST_CASE("tables: beside distances" * doctest::skip()) { check(tables_beside_distances()); }

TEST_CASE("tables: read without a gradient, sizes and lengths at the ends of shared memory" *
          doctest::skip()) {
    check(reads_alone());
}

TEST_SUITE_END();
