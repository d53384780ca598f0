// Programs whose dense biases and shifted reads calls alone can tell to be inside of their buffers.
#include <algorithm>
#include <string>

#include <doctest/doctest.h>

#include "ir/print.h"
#include "passes/dense_bias.h"
#include "passes/gradient_order.h"
#include "passes/gradient_sum.h"
#include "passes/inside_calls.h"
#include "passes/table_gradient.h"
#include "program_of.h"
#include "support/text.h"

using namespace flexc;
using passes::GradientSum;

namespace {

passes::Mod lowered(const std::string& dims, const std::string& index,
                    const std::string& more = "") {
    return test::lowered(formatted("param n: int\nbuffer g: i32[B]\nbuffer t: bf16[{}] grad\n"
                                   "{}score_mod = score + t[{}]",
                                   dims, more, index));
}
GradientSum sum_of(const passes::Mod& mod) {
    return passes::gradient_sum(mod, mod.gradients.at(0), passes::usual_sums(mod));
}

} // namespace

TEST_CASE("calls tell that dense biases are inside of their buffers") {
    for (const auto& [dims, index] :
         {std::pair{"H, KV_LEN, KV_LEN", "h, q_idx + KV_LEN - Q_LEN, kv_idx"},
          {"H, KV_LEN, KV_LEN", "h, q_idx + (KV_LEN - Q_LEN), kv_idx"},
          {"H, N, KV_LEN", "h, q_idx + n, kv_idx"},
          {"H, N, N", "h, q_idx, kv_idx"},
          {"H, 4096, 4096", "h, q_idx, kv_idx"},
          {"N, Q_LEN, KV_LEN", "h // (H // N), q_idx, kv_idx"},
          {"N, Q_LEN, KV_LEN", "h // 4, q_idx, kv_idx"},
          {"N, Q_LEN, KV_LEN", "h * N // H, q_idx, kv_idx"},
          {"N, H, Q_LEN, KV_LEN", "b // 2, h, q_idx, kv_idx"}}) {
        CAPTURE(std::string(index));
        const passes::Mod mod = lowered(dims, index);
        CHECK(sum_of(mod) == GradientSum::element);
        REQUIRE(mod.inside_calls.size() == 1);
        const passes::Mod& inside = mod.inside_calls[0];
        CHECK(inside.inside_reads.size() == 1);
        CHECK(sum_of(inside) == GradientSum::dense_bias);
        CHECK(passes::argument_slots(inside) == passes::argument_slots(mod));
        // Other elements of the buffer may not be read, so that blocks add.
        CHECK(!passes::sharing_of_biases(inside));
    }
}

TEST_CASE("calls tell that shifted reads are inside of their buffers") {
    for (const auto& [dims, index] :
         {std::pair{"B, H, KV_LEN, 99", "b, h, q_idx + KV_LEN - Q_LEN, kv_idx - q_idx"},
          {"B, H, 500, N", "b, h, q_idx, kv_idx - q_idx + n"},
          {"B, N, Q_LEN, 99", "b, h // (H // N), q_idx, q_idx - kv_idx + 50"},
          {"B, H, N, KV_LEN", "b, h, 2 * q_idx, kv_idx"},
          {"B, H, Q_LEN, N", "b, h, q_idx, clamp(kv_idx - q_idx + n, 0, 2 * n)"},
          {"B, H, Q_LEN, N", "b, h, q_idx, clamp(kv_idx - q_idx, -n, n) + n"},
          {"H, KV_LEN, N", "h, kv_idx, clamp(q_idx - kv_idx, -n, n) + n"},
          {"H, KV_LEN, KV_LEN", "h, kv_idx, q_idx + KV_LEN - Q_LEN"},
          {"N, Q_LEN, M", "h // 2, q_idx, kv_idx + n"}}) {
        CAPTURE(std::string(index));
        const passes::Mod mod = lowered(dims, index);
        REQUIRE(mod.inside_calls.size() == (sum_of(mod) == GradientSum::shifted ? 0 : 1));
        if (mod.inside_calls.empty()) continue;
        const passes::Mod& inside = mod.inside_calls[0];
        CHECK(sum_of(inside) == GradientSum::shifted);
        // Lines that no query has may be left, so that the gradient is cleared before.
        CHECK_FALSE(passes::has_whole_lines(inside, inside.gradients[0]));
    }
}

TEST_CASE("dense biases by key, or from another key on, are shifted reads") {
    for (const auto& [dims, index] : {std::pair{"H, KV_LEN, Q_LEN", "h, kv_idx, q_idx"},
                                      {"B, KV_LEN, 9", "b, kv_idx, q_idx"},
                                      {"Q_LEN, 700", "q_idx, kv_idx + 3"},
                                      {"Q_LEN, N", "q_idx, kv_idx + n"}}) {
        CAPTURE(std::string(index));
        const passes::Mod mod = lowered(dims, index);
        CHECK(sum_of(mod) == GradientSum::shifted);
        CHECK(mod.inside_calls.empty());
    }
}

TEST_CASE("programs of which calls can tell nothing have no kernels of their own for calls") {
    for (const auto& [dims, index] :
         {std::pair{"H, Q_LEN, KV_LEN", "h, q_idx, kv_idx"},
          {"H_KV, Q_LEN, KV_LEN", "h_kv, q_idx, kv_idx"},
          {"N, Q_LEN, KV_LEN", "g[b], q_idx, kv_idx"},    // stored by the caller
          {"H, N, KV_LEN", "h, q_idx // 2, kv_idx"},      // not one row for a query
          {"H, 99", "h, q_idx - kv_idx"},                 // by distance
          {"H, N, 9", "h, q_idx, 2 * kv_idx - q_idx"}}) { // no lines
        CAPTURE(std::string(index));
        CHECK(lowered(dims, index).inside_calls.empty());
    }
    // Masks are not read by tiles.
    CHECK(test::lowered("buffer m: u8[B, 4096, 4096]\nmask_mod = m[b, q_idx, kv_idx] != 0")
              .inside_calls.empty());
}

TEST_CASE("each read waits for calls by itself") {
    const passes::Mod mod =
        lowered("H, N, N", "h, q_idx, kv_idx", "buffer r: f32[B, H, M, 2] grad\n");
    REQUIRE(mod.inside_calls.size() == 1);
    const passes::Mod two = test::lowered(
        "buffer t: bf16[H, N, N] grad\nbuffer r: f32[KV_LEN, 60] grad\nbuffer u: f32[9, H] grad\n"
        "score_mod = score + t[h, q_idx, kv_idx] + r[q_idx + KV_LEN - Q_LEN, clamp(q_idx - kv_idx, "
        "0, 59)] + u[q_idx % 9, h]");
    REQUIRE(two.inside_calls.size() == 1);
    CHECK(two.inside_calls[0].inside_reads.size() == 2);
}

TEST_CASE("the query head that a group of heads begins with is that of keys") {
    const auto text = [](const char* head) {
        const passes::Mod mod = test::lowered(
            formatted("buffer t: bf16[H_KV, Q_LEN, KV_LEN] grad\nbuffer s: f32[H_KV]\n"
                      "score_mod = score * s[{}] + t[{}, q_idx, kv_idx]",
                      head, head));
        CHECK(sum_of(mod) == GradientSum::dense_bias);
        return ir::print(mod.program);
    };
    CHECK(text("h // (H // H_KV)") == text("h_kv"));
}

TEST_CASE("calls tell that a table has few kinds") {
    const std::string kinds = "buffer k: i64[KV_LEN]\n";
    for (const char* text :
         {"buffer t: f32[N, N, H] grad\nscore_mod = score + t[k[q_idx], k[kv_idx], h]",
          "buffer t: f32[H, N, 9] grad\nscore_mod = score * t[h, k[kv_idx], k[q_idx]]",
          "buffer t: f32[N, M] grad\nscore_mod = score + t[q_idx // 64, kv_idx % 9]"}) {
        CAPTURE(std::string(text));
        const passes::Mod mod = test::lowered(kinds + text);
        CHECK(passes::read_by_kinds(mod) == ir::kNoNode);
        REQUIRE(mod.inside_calls.size() == 1);
        CHECK(passes::is_of_inside_calls(mod.inside_calls[0]));
        CHECK(passes::read_by_kinds(mod.inside_calls[0]) != ir::kNoNode);
    }
    for (const char* text :
         {"buffer t: f32[8, 8, H] grad\nscore_mod = score + t[k[q_idx], k[kv_idx], h]", // known
          "buffer t: f32[N, 40] grad\nscore_mod = score + t[k[q_idx], k[kv_idx]]",      // too many
          "buffer t: f32[N, N]\nscore_mod = score + t[k[q_idx], k[kv_idx]]", // not learned
          "buffer t: f32[N] grad\nscore_mod = score + t[k[q_idx] + k[kv_idx]]"}) {
        CAPTURE(std::string(text));
        CHECK(test::lowered(kinds + text).inside_calls.empty());
    }
}
