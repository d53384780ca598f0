#include <doctest/doctest.h>

#include <string>
#include <tuple>

#include "passes/describe.h"
#include "program_of.h"

using namespace flexc;

TEST_CASE("dependence: one entry a read, with its proof and its gradient") {
    const passes::Mod mod = test::lowered(
        "buffer slopes: f32[H] grad\nbuffer doc: i32[KV_LEN]\n"
        "buffer bias: f32[B, H, Q_LEN, KV_LEN] grad\nbuffer rel: f32[N] grad\n"
        "score_mod = score + slopes[h] * (kv_idx - q_idx) + bias[b, h, q_idx, kv_idx] +\n"
        "  rel[q_idx - kv_idx + N // 2]\n"
        "mask_mod = doc[q_idx] == doc[kv_idx]");
    CHECK(
        passes::describe_dependence(mod) ==
        "score_mod uses score, b, h, q_idx, kv_idx\n"
        "mask_mod uses q_idx, kv_idx\n"
        "d score_mod / d score uses nothing\n"
        "slopes[h]: uses h; computed per head; always in range\n"
        "  class: constant; one address for a head\n"
        "  gradient: sum over b, q_idx, kv_idx; in a warp-specialized fused backward in "
        "registers, once for a head; in a generic one in registers, once for a head; of short "
        "sequences as in others: the places of some gradient depend on more than h, q_idx and "
        "kv_idx\n"
        "bias[b, h, q_idx, kv_idx]: uses b, h, q_idx, kv_idx; computed per element; "
        "always in range\n"
        "  read: in a warp-specialized forward from tiles in shared memory\n"
        "  class: dense_bias; each element has its own\n"
        "  gradient: one element for each address; in a warp-specialized fused backward in "
        "memory, element by element; in a generic one in memory, element by element; of short "
        "sequences as in others: the places of some gradient depend on more than h, q_idx and "
        "kv_idx\n"
        "rel[(q_idx - kv_idx) + (N // 2)]: uses q_idx, kv_idx; computed per element; "
        "one for each distance q_idx - kv_idx; "
        "index checked\n"
        "  read: in a warp-specialized forward once for each distance, before it\n"
        "  class: distance_1d; one for a distance q_idx - kv_idx\n"
        "  gradient: sum over b, h, q_idx, kv_idx of those with this index; in a warp-specialized "
        "fused backward over a tile's diagonals, once for a distance; in a generic one in a copy "
        "of "
        "what a tile meets on chip, once for an entry, head and tile of keys, where there is room; "
        "of short sequences as in others: the places of some gradient depend on more than h, q_idx "
        "and kv_idx\n"
        "doc[q_idx]: uses q_idx; computed per row; index checked\n"
        "  class: row; one for a query\n"
        "doc[kv_idx]: uses kv_idx; computed per column; always in range\n"
        "  class: column; one for a key\n");
}

TEST_CASE("dependence: gradients by the 2-D key index are sums over its rows or columns") {
    const auto sums_of = [](const std::string& more, passes::PipelineOptions options = {}) {
        return passes::describe_dependence(
            test::lowered("buffer row: f32[B, H, Q_LEN, 8] grad\n"
                          "buffer column: f32[B, H, Q_LEN, 32] grad\n"
                          "buffer more: f32[H, Q_LEN, KV_LEN] grad\n"
                          "score_mod = score + row[b, h, q_idx, kv_idx // 32] +\n"
                          "  column[b, h, q_idx, kv_idx % 32]" +
                              more,
                          options));
    };
    const std::string by_row = "fused backward over a tile's keys, once for a query and row of "
                               "keys, in rows of 32 keys; of wide heads in memory, element by "
                               "element;";
    const std::string by_column = "fused backward over a tile's rows of keys, once for a query and "
                                  "place in them, in rows of 32 keys; of wide heads in memory, "
                                  "element by element;";
    const std::string text = sums_of("");
    CHECK(text.find(by_row) < text.find(by_column));
    CHECK(text.find(by_column) != std::string::npos);
    // Where the kernel does not sum by it: with tiles of a dense bias, and in a fixed order.
    for (const std::string& other :
         {sums_of(" + more[h, q_idx, kv_idx]"), sums_of("", {.deterministic = true})}) {
        CHECK(other.find("once for a query and row of keys, in rows") == std::string::npos);
        CHECK(other.find("fused backward in memory, element by element") != std::string::npos);
    }
}

TEST_CASE("dependence: how gradients of terms are summed, in all kernels or in some") {
    const auto sums_of = [](const std::string& term, const std::string& before = "score * ") {
        const std::string text = passes::describe_dependence(
            test::lowered("buffer w: f32[H, 16] grad\nbuffer u: f32[Q_LEN, 16] grad\n"
                          "buffer v: f32[KV_LEN, 16] grad\nbuffer t: f32[99, 16] grad\n"
                          "score_mod = " +
                          before + "sum(i in 0..16: " + term + ")"));
        const std::size_t at = text.find("  gradient: ");
        return text.substr(at, text.find('\n', at) - at);
    };
    const auto ends = [](const std::string& text, std::string_view end) {
        return text.ends_with(end);
    };
    CHECK(ends(sums_of("w[h, i]"), "; over a tile for each term, once for a head and term"));
    CHECK(ends(sums_of("u[q_idx, i]"),
               "; over a tile's keys for each term, once for a query and term"));
    CHECK(ends(sums_of("v[kv_idx, i]"),
               "; over a tile's queries for each term, once for a key and term"));
    CHECK(ends(sums_of("t[(q_idx + kv_idx) % 9, i]"), "; in a loop over the terms, one by one"));
    CHECK(
        ends(sums_of("w[h, i]", "score + "),
             "; in a warp-specialized fused backward over a tile's diagonals, once for all terms, "
             "and then once for a distance and term; in others over a tile for each term, once "
             "for a head and term"));
}

TEST_CASE("dependence: kinds that Hopper's kernels multiply by are named, and what they do else") {
    const std::string text = passes::describe_dependence(
        test::lowered("buffer t: f32[9, 8, H] grad\nbuffer g: i32[Q_LEN]\nbuffer k: i32[KV_LEN]\n"
                      "score_mod = score + t[g[q_idx], k[kv_idx], h]"));
    CHECK(text.find("  read: in a warp-specialized forward once for a query and each of 8 kinds of "
                    "keys; for "
                    "elements with the products of queries and keys, where columns for the kinds "
                    "are at most a quarter of a head's, else from a copy for each thread in shared "
                    "memory, where there is room\n"
                    "  read: else in a warp-specialized forward from a copy of the head's slice") !=
          std::string::npos);
    CHECK(text.find("in a warp-specialized fused backward by products with ones of its kinds, once "
                    "for an entry and head; in a generic one in a copy of what a tile meets on "
                    "chip, once for an entry, head and tile of keys, where there is room; of short "
                    "sequences over sequences of a block, once for an element and head\n") !=
          std::string::npos);
}

TEST_CASE("dependence: tables that share sums in a generic backward are named") {
    const auto shares = [](const std::string& index) {
        return passes::describe_dependence(
                   test::lowered("buffer t: f32[2, 9] grad\nbuffer a: f32[H, 2]\nscore_mod = score "
                                 "+ a[h, 0] * t[0, min(abs(q_idx - kv_idx), 8)] + a[h, 1] * t[1, " +
                                 index + "]"))
                   .find("head and tile of keys, for all tables of these entries, where there is "
                         "room") != std::string::npos;
    };
    CHECK(shares("min(abs(q_idx - kv_idx), 8)"));
    CHECK_FALSE(shares("min(abs(q_idx - kv_idx), 7)"));
}

TEST_CASE("dependence: lines beyond a clamp are named") {
    const auto has_ends = [](const std::string& index) {
        return passes::describe_dependence(
                   test::lowered("buffer r: f32[B, H, Q_LEN, 9] grad\nscore_mod = score + r[b, h, "
                                 "q_idx, " +
                                 index + "]"))
                   .find("in a generic one in memory, element by element, and over the part of a "
                         "line that is beyond a clamp;") != std::string::npos;
    };
    CHECK(has_ends("clamp(kv_idx - q_idx, -4, 4) + 4"));
    CHECK_FALSE(has_ends("kv_idx - q_idx + 4"));
}

TEST_CASE("dependence: kinds of pairs that are stored for all heads are named") {
    const std::string text = passes::describe_dependence(
        test::lowered("buffer t: f32[H, 64] grad\nbuffer d: i32[B, Q_LEN, KV_LEN]\n"
                      "score_mod = score + t[h, min(max(d[b, q_idx, kv_idx], 0), 63)]"));
    CHECK(text.find("  read: in a warp-specialized forward once for a head and each of 64 kinds of "
                    "pairs of a query and a key; which kind each pair is of is stored before it as "
                    "a byte, once for all heads; for elements from a copy for each lane in shared "
                    "memory, where there is room\n"
                    "  read: else in a warp-specialized forward from a copy of the head's slice") !=
          std::string::npos);
}

TEST_CASE(
    "dependence: the class of a read, why it is none above, and what is different in pieces") {
    const auto class_of = [](const std::string& index) {
        const std::string text = passes::describe_dependence(
            test::lowered("buffer t: f32[N, M] grad\nbuffer pair: u8[Q_LEN, KV_LEN]\n"
                          "param W: i32 = 8\nscore_mod = score + t[" +
                          index + "]"));
        const std::size_t at = text.rfind("  class: ");
        return text.substr(at, text.find("  gradient") - at);
    };
    CHECK(class_of("q_idx // W - kv_idx // W, (q_idx - 1) % 4 - kv_idx % 4") ==
          "  class: small_table; a head's elements meet 4 * N addresses at most; not "
          "pair_of_kinds: nothing but the lengths bounds (q_idx // W) - (kv_idx // W)\n");
    CHECK(class_of("(q_idx - 1) // W - (kv_idx + 2) // W, (q_idx - 1) % W - (kv_idx + 2) % W") ==
          "  class: grid_distance; one for (q_idx - 1) % W - (kv_idx + 2) % W, "
          "(q_idx - 1) // W - (kv_idx + 2) // W\n");
    const auto from_shared_memory = [](const std::string& read) {
        return passes::describe_dependence(
                   test::lowered("buffer t: f32[H, N]\nbuffer w: f32[Q_LEN, H]\nbuffer big: f32[H, "
                                 "300, 300]\n"
                                 "score_mod = score + " +
                                 read))
                   .find("  read: in a warp-specialized forward from a copy") != std::string::npos;
    };
    CHECK(from_shared_memory("t[h, abs(q_idx // 4 - kv_idx // 4)]"));
    CHECK_FALSE(from_shared_memory("t[h, q_idx - kv_idx]"));
    CHECK_FALSE(from_shared_memory("w[abs(q_idx // 4 - kv_idx // 4), h]"));
    CHECK_FALSE(
        from_shared_memory("big[h, q_idx // 300 - kv_idx // 300, q_idx % 300 - kv_idx % 300]"));
    CHECK(class_of("where(q_idx == 0, 0, q_idx // 4 - kv_idx // 4), 0") ==
          "  class: grid_distance; one for q_idx // 4 - kv_idx // 4\n"
          "    where (q_idx == 0): constant\n"
          "    where not (q_idx == 0): grid_distance\n");
    CHECK(class_of("q_idx, clamp(kv_idx - q_idx, 0, 5)") ==
          "  class: shifted; each element has its own, but for those beyond a clamp; not "
          "grid_distance: q_idx is no function of differences of digits of q_idx and kv_idx\n");
    const auto has_ends = [](const std::string& score) {
        return passes::describe_dependence(
                   test::lowered("buffer c: f32[Q_LEN, 9]\nbuffer p: f32[KV_LEN, 9]\nscore_mod = "
                                 "score + c[q_idx, clamp(kv_idx - q_idx, 0, 8)] + " +
                                 score))
                   .find("of tiles beyond the clamps of all such reads, one element a line") !=
               std::string::npos;
    };
    CHECK(has_ends("p[kv_idx, max(min(q_idx - kv_idx, 4), -4) + 4]"));
    CHECK_FALSE(has_ends("p[kv_idx, q_idx - kv_idx]"));
}

TEST_CASE("hints: where a gradient ends element by element, and what to write instead") {
    const auto hints = [](const std::string& dims, const std::string& index) {
        return passes::read_hints(
            test::lowered("buffer t: f32[" + dims +
                          "] grad\nbuffer at: i32[KV_LEN]\n"
                          "buffer pair: i32[Q_LEN, KV_LEN]\nscore_mod = score + t[" +
                          index + "]"));
    };
    CHECK(hints("H, N", "h, pair[q_idx, kv_idx]").empty());
    CHECK(hints("H, KV_LEN", "h, kv_idx").empty());
    const dsl::Diagnostics unbounded = hints("KV_LEN", "pair[q_idx, kv_idx]");
    REQUIRE(unbounded.size() == 1);
    CHECK(unbounded[0].message.find("gradient of 't'") != std::string::npos);
    CHECK(unbounded[0].hint.find("instead of Q_LEN and KV_LEN") != std::string::npos);
    const dsl::Diagnostics large = hints("100000", "pair[q_idx, kv_idx]");
    REQUIRE(large.size() == 1);
    CHECK(large[0].hint.find("clamp") != std::string::npos);
    // An entry for each query: digits of keys are summed where they are those of kv_idx itself, and
    // few kinds of keys where each has a read of its own.
    CHECK(hints("Q_LEN, 9", "q_idx, kv_idx // 14").empty());
    CHECK(hints("Q_LEN, 9", "q_idx, clamp(kv_idx // 14 - q_idx // 14, 0, 8)").empty());
    const dsl::Diagnostics digits = hints("Q_LEN, 14", "q_idx, (kv_idx - 1) % 14");
    REQUIRE(digits.size() == 1);
    CHECK(digits[0].message.find("for each query and kind of key") != std::string::npos);
    CHECK(digits[0].hint.find("kv_idx % W") != std::string::npos);
    const dsl::Diagnostics width = hints("Q_LEN, M", "q_idx, kv_idx // M");
    REQUIRE(width.size() == 1);
    CHECK(width[0].hint.find("write it instead of M") != std::string::npos);
    for (const auto& [dims, index, by] : {std::tuple("Q_LEN, 4", "q_idx, at[kv_idx]", "q_idx"),
                                          {"4, KV_LEN", "at[q_idx], kv_idx", "kv_idx"}}) {
        const dsl::Diagnostics few = hints(dims, index);
        REQUIRE(few.size() == 1);
        CHECK(few[0].hint.find("t[" + std::string(by) + ", 0]") != std::string::npos);
    }
    const dsl::Diagnostics many = hints("Q_LEN, 50", "q_idx, at[kv_idx]");
    REQUIRE(many.size() == 1);
    CHECK(many[0].hint.empty());
    // Other functions of the distance than a clamp.
    const dsl::Diagnostics buckets = hints("Q_LEN, 9", "q_idx, abs(kv_idx - q_idx) // 8 % 9");
    REQUIRE(buckets.size() == 1);
    CHECK(buckets[0].hint.find("kv_idx - q_idx, clamped or not") != std::string::npos);
    // A bias whose keys are apart in memory.
    CHECK(hints("Q_LEN, KV_LEN", "q_idx, kv_idx").empty());
    CHECK(hints("KV_LEN, Q_LEN", "kv_idx, q_idx").empty());
    const dsl::Diagnostics apart = hints("Q_LEN, KV_LEN, H", "q_idx, kv_idx, h");
    REQUIRE(apart.size() == 1);
    CHECK(apart[0].hint == "make kv_idx the last index");
}

TEST_CASE("dependence: how a forward reads what elements need, or that they read memory") {
    const auto way = [](const std::string& score) {
        const std::string text = passes::describe_dependence(
            test::lowered("buffer p: f32[Q_LEN, KV_LEN, 3]\nbuffer r: f32[Q_LEN, 9]\n"
                          "buffer d: f32[9]\nbuffer c: f32[KV_LEN]\nscore_mod = score + " +
                          score));
        const std::size_t at = text.find("  read: in a warp-specialized forward ");
        return at == std::string::npos ? "" : text.substr(at + 38, text.find('\n', at) - at - 38);
    };
    CHECK(way("p[q_idx, kv_idx, 1]") == "from memory, element by element");
    CHECK(way("r[q_idx, kv_idx // 14]") ==
          "once for a query and row of 14 keys, where there is room");
    CHECK(way("r[q_idx, kv_idx % 8]") ==
          "once for a query and place in rows of 8 keys, where there is room");
    CHECK(way("d[clamp(q_idx - kv_idx, 0, 8)]") == "once for each distance, before it");
    CHECK(way("c[kv_idx]").empty());
    // Beside a table that elements would then read from memory.
    CHECK(way("d[q_idx // 14 % 9] + r[q_idx, kv_idx // 14] + d[min(q_idx * kv_idx % 9, 8)]") ==
          "from memory, element by element");
}

TEST_CASE("mask: the band, and whether it says everything") {
    auto mask = [](const std::string& text) { return passes::describe_mask(test::lowered(text)); };
    CHECK(mask("score_mod = score") == "everything is visible\n");
    CHECK(mask("mask_mod = 1 < 0") == "nothing is visible\n");
    CHECK(mask("mask_mod = q_idx >= kv_idx and q_idx - kv_idx <= 24") ==
          "visible where (kv_idx <= q_idx) and ((q_idx - kv_idx) <= 24)\n"
          "uses q_idx, kv_idx\n"
          "tiles: a range for each row of tiles, computed in the kernel; no block mask\n"
          "band: kv_idx - q_idx >= -24\n"
          "band: kv_idx - q_idx <= 0\n"
          "everything in the band is visible\n");
    CHECK(
        mask("param n: int = 4\nmask_mod = kv_idx < n") ==
        "visible where kv_idx < n\nuses kv_idx\ntiles: a block mask, by intervals of what "
        "queries and keys alone give "
        "in each tile\nno band of diagonals was found\n"
        "on a CPU: the mask of a tile that is left open is evaluated before the tile's scores are "
        "computed\n");
    CHECK(mask("buffer a: f32[Q_LEN, KV_LEN]\nscore_mod = score + a[q_idx, kv_idx]") ==
          "everything is visible\non a CPU: tiles of which every score is -inf are left out: where "
          "a[q_idx, kv_idx] == -inf, if scores are finite\n");
    CHECK(mask("mask_mod = q_idx >= kv_idx and kv_idx % 2 == 0")
              .find("in the band the mask decides\n") != std::string::npos);
}

TEST_CASE("mask: a band with clamped ends, where ranges are asked for") {
    const auto mod = test::lowered("param n: int = 4\nbuffer lens: i32[B]\n"
                                   "mask_mod = (kv_idx < n or q_idx >= kv_idx) and q_idx < lens[b]",
                                   {.clamps_bands = true});
    CHECK(passes::describe_mask(mod) ==
          "visible where ((kv_idx < n) or (kv_idx <= q_idx)) and (q_idx < lens[b])\n"
          "uses b, q_idx, kv_idx\n"
          "tiles: a range for each row of tiles, computed in the kernel; no block mask\n"
          "visible: kv_idx <= max(q_idx + 0, n - 1)\n"
          "visible: q_idx <= lens[b] - 1\n"
          "and nothing else is asked\n");
}

TEST_CASE("gradient: the derivative's nodes, and what each read is") {
    CHECK(passes::describe_gradient(test::lowered(
              "buffer g: f32[H] grad\nbuffer z: f32[H] grad\nscore_mod = score * g[h]")) ==
          "buffer g: f32[H] grad\n"
          "buffer z: f32[H] grad\n"
          "%0 = score : f32\n"
          "%1 = h : int\n"
          "%2 = read g %1 : f32\n"
          "%3 = fmul %0, %2 : f32\n"
          "score = %3\n"
          "d_score = %2\n"
          "read_0 = %2\n"
          "d_read_0 = %0\n"
          "# read_0 is g[h]\n"
          "# the gradient of z is zero\n");
}

TEST_CASE("formulas are cut short, however deep the graph") {
    std::string text = "x = score\n";
    for (int i = 0; i < 40; ++i)
        text += "x = where(x > 1, x * x, x + x)\n";
    const passes::Mod mod = test::lowered("score_mod {\n" + text + "x\n}", {.backward = false});
    const std::string formula = passes::formula(mod.program, mod.score);
    CHECK(formula.find("...") != std::string::npos);
    CHECK(formula.size() < 4000);
}

TEST_CASE("shared and deep expressions are short as formulas") {
    std::string text = "buffer t: i32[N, N]\nmask_mod {\n  x = kv_idx\n";
    for (int i = 0; i < 40; ++i)
        text += "  x = t[x, x]\n";
    const passes::Mod mod = test::lowered(text + "  x < q_idx\n}");
    CHECK(passes::describe_mask(mod).size() < 20000);
    CHECK(passes::describe_dependence(mod).size() < std::size_t{1} << 20);
}
