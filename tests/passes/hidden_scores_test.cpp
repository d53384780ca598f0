#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

#include "hostile_reals.h"
#include "passes/hidden_scores.h"
#include "program_of.h"
#include "random.h"

using namespace flexc;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double hostile(test::Random& random) {
    const std::array odd = {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()};
    if (random.chance(60)) return random.pick(odd);
    const double size = random.pick(test::hostile_sizes());
    return random.chance(50) ? -size : size;
}

// How often each kind is found at random points; whatever is found is true.
struct Found {
    int of_any = 0, of_moderate = 0, hidden = 0;
};
Found check_points(const std::string& text) {
    CAPTURE(text);
    passes::Mod mod = test::lowered(
        "buffer a: f32[4, 4]\nbuffer c: f32[4]\nbuffer s: f32[4]\nbuffer m: bool[4, 4]\n"
        "param p: f32 = 1.0\n" +
        text);
    const auto nodes = passes::find_hidden_scores(mod);
    REQUIRE(nodes.has_value());
    test::Random random(3);
    Found found;
    for (int point = 0; point < 4000; ++point) {
        ir::BufferData a{{4, 4}, {}, {}, {}}, c{{4}, {}, {}, {}}, s{{4}, {}, {}, {}},
            m{{4, 4}, {}, {}, {}};
        for (int i = 0; i < 16; ++i) {
            a.reals.push_back(hostile(random));
            m.integers.push_back(random.integer(0, 1));
            if (i < 4) c.reals.push_back(hostile(random));
            if (i < 4) s.reals.push_back(random.chance(50) ? random.real() : hostile(random));
        }
        ir::Environment at;
        at.sizes = {1, 4, 4, 4, 4, 64, 64};
        at.buffers = {&a, &c, &s, &m};
        at.params = {{.real = hostile(random)}};
        at.score = random.chance(50) ? random.real() * passes::kModerateScore / 2 : hostile(random);
        at.h = random.integer(0, 3);
        at.q_idx = random.integer(0, 3);
        at.kv_idx = random.integer(0, 3);
        const std::array roots = {mod.score, nodes->of_any, nodes->of_moderate};
        const auto values = ir::evaluate<double>(mod.program, roots, at);
        const bool is_hidden = values[mod.score].real == -kInfinity;
        const bool of_any = values[nodes->of_any].boolean;
        const bool of_moderate = values[nodes->of_moderate].boolean;
        CHECK((!of_any || of_moderate));
        if (of_any) REQUIRE(is_hidden);
        if (of_moderate && std::abs(at.score) <= passes::kModerateScore) REQUIRE(is_hidden);
        found.of_any += of_any ? 1 : 0;
        found.of_moderate += of_moderate ? 1 : 0;
        found.hidden += is_hidden ? 1 : 0;
    }
    return found;
}

} // namespace

TEST_CASE("what is said to be hidden is -inf, whatever is read") {
    for (const char* text : {
             "score_mod = score + a[q_idx, kv_idx]",
             "score_mod = a[q_idx, kv_idx] + (score + s[h] * (q_idx - kv_idx))",
             "score_mod = (score - s[h] * (q_idx - kv_idx)) + c[kv_idx]",
             "score_mod = score * p + a[q_idx, kv_idx] - p",
             "score_mod = 20.0 * tanh(score / 20.0) + s[h] * a[q_idx, kv_idx]",
             "score_mod = (a[q_idx, kv_idx] + score) - c[kv_idx]",
             "score_mod = clamp(score * s[h], -9.0, 9.0) + a[q_idx, kv_idx - 0]",
         }) {
        const Found found = check_points(text);
        CHECK(found.of_any == 0);
        CHECK(found.of_moderate > 40);
    }
}

TEST_CASE("branches of -inf hide whatever the score is") {
    for (const char* text : {
             "score_mod = score + c[kv_idx] if m[q_idx, kv_idx] else -inf",
             "score_mod = where(m[q_idx, kv_idx], score, -inf) + c[kv_idx]",
             "score_mod = -inf if q_idx < kv_idx else score * s[h]",
         }) {
        const Found found = check_points(text);
        CHECK(found.of_any > 1000);
    }
}

TEST_CASE("scores that no array at positions and no constant hides are not looked at") {
    const std::string buffers = "buffer t: f32[N]\nbuffer s: f32[H]\n";
    for (const char* text : {
             "score_mod = score", "score_mod = score + s[h] * (q_idx - kv_idx)",
             "score_mod = score + t[max(q_idx - kv_idx, 0)]", "score_mod = score + t[kv_idx // 16]",
             "score_mod = score * t[kv_idx]",           // what 0 or a sign makes of it
             "score_mod = exp(score) + t[kv_idx]",      // may be inf
             "score_mod = score / s[h] + t[kv_idx]",    // likewise
             "score_mod = max(score + t[kv_idx], 0.0)", // no longer -inf
         }) {
        CAPTURE(text);
        passes::Mod mod = test::lowered(buffers + text);
        CHECK_FALSE(passes::find_hidden_scores(mod).has_value());
    }
}

TEST_CASE("facts are of all nodes, also where nothing hides") {
    for (const char* score : {"score * s[q_idx]", "score * s[kv_idx] + 1", "score"}) {
        CAPTURE(score);
        passes::Mod mod =
            test::lowered("buffer s: f32[Q_LEN] grad\nscore_mod = " + std::string(score) +
                          "\nmask_mod = q_idx >= kv_idx");
        CHECK(!passes::find_hidden_scores(mod).has_value());
        CHECK(mod.place.size() == mod.program.graph.size());
    }
}
