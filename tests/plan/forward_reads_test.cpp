// From where the forward kernel for Hopper reads what elements need, by program.
#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

#include "hopper_program.h"
#include "plan/plan.h"
#include "program_of.h"

using namespace flexc;
using namespace flexc::plan;
using Of = Decomposition::Of;

namespace {

std::vector<KernelConfig> forwards_of(const std::string& text) {
    const auto program = test::hopper_program(test::program_of(text), 64);
    REQUIRE(program);
    auto plan = make_plan(*program);
    REQUIRE(plan);
    return std::move(plan->forward.front().candidates);
}

} // namespace

TEST_CASE("tables are kept in shared memory whatever is tabulated beside them") {
    const std::string image = "buffer t: f32[H, 16132]\nscore_mod = score + t[h, where(q_idx == 0, "
                              "16131, (q_idx // 64 - kv_idx // 64 + 63) * 127 + q_idx % 64 - "
                              "kv_idx % 64 + 63)]";
    CHECK(forwards_of(image).front().decomposition.of == Of::with_tables);
    // Computed once for each distance, however long it takes.
    const std::string buckets = " + 0.1 * log(1 + abs(sin(0.3 * (q_idx - kv_idx)))) * "
                                "tanh(cos(0.1 * (q_idx - kv_idx)) - exp(-0.01 * abs(q_idx - "
                                "kv_idx)))";
    CHECK(forwards_of(image + buckets).front().decomposition.of == Of::with_tables);
}

TEST_CASE("a 2-D key index is not worth a table's reads from memory") {
    const std::string points = "buffer c: f32[H, 2]\nbuffer s: i32[Q_LEN]\nbuffer t: f32[H, 40]\n"
                               "score_mod = score - (q_idx % 64 - kv_idx % 64 - c[h, 0]) ** 2 - "
                               "(q_idx // 64 - kv_idx // 64 - c[h, 1]) ** 2";
    CHECK(forwards_of(points).front().decomposition.of == Of::by_index_2d);
    CHECK(forwards_of(points + " + t[h, min(abs(s[q_idx] - s[kv_idx]), 39)]")
              .front()
              .decomposition.of == Of::with_tables);
}

TEST_CASE("tables that three warpgroups have no registers for are tried with two") {
    const std::vector<KernelConfig> all =
        forwards_of("buffer t: f32[H, 8, 8]\nbuffer g: i32[Q_LEN]\nbuffer f: f32[KV_LEN]\n"
                    "score_mod = (score + t[h, g[q_idx], g[kv_idx]]) * f[kv_idx]");
    REQUIRE(all.size() > 3);
    for (const int i : {0, 1, 2}) {
        CAPTURE(i);
        CHECK(all[static_cast<std::size_t>(i)].decomposition.of == Of::with_tables);
        CHECK(all[static_cast<std::size_t>(i)].schedule->consumers == (i < 2 ? 3 : 2));
    }
    CHECK(all[3].decomposition.of == Of::plain);
    // What follows takes longer than a few spilled words.
    CHECK(all[1].spills.tolerated < 64);
    CHECK(all[2].spills.tolerated == 128);
}

TEST_CASE("tables whose places take much to compute have shorter tiles, not memory") {
    const auto bucket = [](const std::string& t, const std::string& axis) {
        const std::string distance = "abs(x[b, q_idx, " + axis + "] - x[b, kv_idx, " + axis + "])";
        return " + " + t + "[h, min(int(log(1.0 + " + distance + ") * 8), 64)]";
    };
    std::string text = "buffer x: f32[B, Q_LEN, 3]\n", score = "score_mod = score";
    int shortest = 128;
    for (const std::string t : {"t", "u", "v"}) {
        text += "buffer " + t + ": f32[H, 65]\n";
        score += bucket(t, std::to_string(t[0] - 't'));
        CAPTURE(score);
        const KernelConfig first = forwards_of(text + score).front();
        CHECK(first.decomposition.of == Of::with_tables);
        CHECK(first.schedule->consumers == 2);
        CHECK(first.block.key_tile <= shortest);
        shortest = first.block.key_tile;
    }
    CHECK(shortest == 64);
}
