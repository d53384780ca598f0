// The parts of a score mod, put together again, are the mod.
#include <algorithm>
#include <cmath>
#include <string>

#include <doctest/doctest.h>

#include "compile/kernels.h"
#include "ir/interp.h"
#include "passes/decompose.h"
#include "random_program.h"

namespace {

using namespace flexc;
using ir::kNoNode;

passes::Mod lowered(const std::string& text) {
    auto mod = test::lower_text(text, 64, 64, false);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    return std::move(*mod);
}

double part(const passes::DecomposedMod& folded, ir::NodeId node, const ir::Environment& at,
            double absent) {
    return node == kNoNode ? absent : ir::evaluate_real(folded.mod.program, node, at);
}

bool same(double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); }

void check_at(const passes::DecomposedMod& folded, const ir::Environment& at) {
    const passes::ScoreParts& parts = folded.parts;
    double sum = part(folded, parts.multiplier, at, 0) * at.score +
                 part(folded, parts.row_addend, at, 0) + part(folded, parts.key_addend, at, 0) +
                 part(folded, parts.distance_addend, at, 0) +
                 part(folded, parts.element_addend, at, 0);
    for (const passes::RowKeyProduct& product : parts.products) {
        ir::Environment below = at, further = at;
        below.q_idx += 5;
        further.kv_idx += 3;
        const double row = part(folded, product.row, at, 0), key = part(folded, product.key, at, 0);
        CHECK(same(part(folded, product.row, further, 0), row));
        CHECK(same(part(folded, product.key, below, 0), key));
        sum += row * key;
    }
    if (parts.cap != kNoNode) sum = part(folded, parts.cap, at, 0) * std::tanh(sum);
    const double want = ir::evaluate_real(folded.mod.program, folded.mod.score, at);
    CHECK(sum == doctest::Approx(want).epsilon(1e-5));

    ir::Environment below = at, along = at;
    below.q_idx += 5;
    along.q_idx += 5;
    along.kv_idx += 5;
    CHECK(same(part(folded, parts.key_addend, below, 0), part(folded, parts.key_addend, at, 0)));
    CHECK(same(part(folded, parts.distance_addend, along, 0),
               part(folded, parts.distance_addend, at, 0)));

    ir::Environment further = at;
    further.kv_idx += 3;
    const double gain =
        part(folded, parts.row_addend, further, 0) - part(folded, parts.row_addend, at, 0);
    CHECK(gain == doctest::Approx(3 * part(folded, parts.slope, at, 0)).epsilon(1e-5));
}

struct Expected {
    const char* text;
    bool row, slope, key, distance, element, cap;
};

} // namespace

TEST_CASE("common mods are taken apart") {
    constexpr Expected kCases[] = {
        {"score * 2", false, false, false, false, false, false},
        {"score + (q_idx - kv_idx)", true, true, false, false, false, false},
        {"param a: f32 = 0.3\nscore_mod = score + a * (kv_idx - q_idx)", true, true, false, false,
         false, false},
        {"param a: f32 = 0.3\nscore_mod = a * score - q_idx * a / 3", true, false, false, false,
         false, false},
        {"score + abs(q_idx - kv_idx)", false, false, false, true, false, false},
        {"score + abs(q_idx - 2 * kv_idx)", false, false, false, false, true, false},
        {"score - abs(q_idx - kv_idx) + (2 * kv_idx - q_idx) * 0.5 + h", true, true, false, true,
         false, false},
        {"score - log(1 + kv_idx) - sqrt(kv_idx) * h + q_idx * kv_idx", false, false, true, false,
         true, false},
        {"score + max(kv_idx - q_idx, 0) // 3 + (kv_idx % 7 + (kv_idx - q_idx) % 5 * 0.5)", false,
         false, true, true, false, false},
        {"score - (sqrt(q_idx) + h) * 0.5 * log(1 + kv_idx) + sqrt(q_idx) * (kv_idx % 7) + "
         "sqrt(kv_idx)",
         false, false, false, false, false, false},
        {"20 * tanh(score / 20)", false, false, false, false, false, true},
        {"param c: f32 = -5.0\nscore_mod = tanh((score + kv_idx * 0.1) / c) * c", true, true, false,
         false, false, true},
        {"(score + kv_idx - 3) * (q_idx + 1) - -score", true, true, false, false, false, false},
    };
    for (const Expected& one : kCases) {
        CAPTURE(one.text);
        const passes::DecomposedMod folded = passes::decompose_score(lowered(one.text));
        REQUIRE(folded.parts.found());
        CHECK((folded.parts.row_addend != kNoNode) == one.row);
        CHECK((folded.parts.slope != kNoNode) == one.slope);
        CHECK((folded.parts.key_addend != kNoNode) == one.key);
        CHECK((folded.parts.distance_addend != kNoNode) == one.distance);
        CHECK((folded.parts.element_addend != kNoNode) == one.element);
        CHECK((folded.parts.cap != kNoNode) == one.cap);
        ir::Environment at;
        at.sizes = {2, 4, 2, 90, 110, 64, 64};
        for (const ir::Param& param : folded.mod.program.params)
            at.params.push_back({.real = param.default_value});
        for (int point = 0; point < 20; ++point) {
            at.score = 0.37 * point - 3;
            at.h = point % 4;
            at.q_idx = 7 * point % 90;
            at.kv_idx = 13 * point % 110;
            check_at(folded, at);
        }
    }
}

TEST_CASE("up to eight numbers of a key are computed before elements combine them with others") {
    const auto key_values = [](int numbers, const std::string& before, const std::string& after,
                               std::size_t most = passes::kMostByKey) {
        std::string text = "buffer x: f32[B, H, KV_LEN, 12]\nscore_mod = score - sqrt(1";
        for (int i = 0; i < numbers; ++i)
            text += " + " + before + "x[b, h, kv_idx, " + std::to_string(i) + "]" + after;
        return passes::decompose_score(lowered(text + ")"), 0, most).parts.key_values.size();
    };
    for (int numbers = 1; numbers <= 12; ++numbers) {
        const auto expected = static_cast<std::size_t>(std::min(numbers, 8));
        CHECK(key_values(numbers, "(x[b, h, q_idx, 2] - ", ") ** 2") == expected);
        CHECK(key_values(numbers, "abs(q_idx - 0.5 * exp(", "))") == expected);
    }
    CHECK(key_values(12, "(x[b, h, q_idx, 2] - ", ") ** 2", 3) == 3);
}

TEST_CASE("what is not affine in the score stays whole") {
    for (const char* text :
         {"score * score", "exp(score)", "kv_idx * 0.5", "score * kv_idx", "min(score, 2)",
          "score + tanh(score)", "kv_idx * tanh(score)", "score if q_idx > 3 else 0.0"}) {
        CAPTURE(text);
        CHECK(!passes::decompose_score(lowered(text)).parts.found());
    }
}

TEST_CASE("what is read for each pair is copied by tiles whether a score is taken apart or not") {
    const auto copied = [](const std::string& score, bool with_tables = false) {
        const passes::Mod mod = lowered("buffer p: f32[H, Q_LEN, KV_LEN]\nbuffer t: f32[9, H]\n"
                                        "buffer e: i32[Q_LEN, KV_LEN]\nscore_mod = " +
                                        score);
        const passes::DecomposedMod decomposed =
            with_tables ? passes::decompose_score_with_tables(mod) : passes::decompose_score(mod);
        const ir::NodeId read = decomposed.parts.bias_read;
        if (read == kNoNode) return std::string();
        const ir::Program& program = decomposed.mod.program;
        return program.buffers[program.graph[read].symbol].name;
    };
    CHECK(copied("score + p[h, q_idx, kv_idx]") == "p");
    CHECK(copied("score * p[h, q_idx, kv_idx]") == "p");
    CHECK(copied("(score + p[h, q_idx, kv_idx]) * kv_idx") == "p");
    CHECK(copied("score + h * tanh(score) + p[h, q_idx, kv_idx]") == "p");
    CHECK(copied("score * p[h, q_idx, q_idx]").empty());
    CHECK(copied("score * t[e[q_idx, kv_idx], h]").empty());
    CHECK(copied("score + t[e[q_idx, kv_idx], h]", true) == "e");
    CHECK(copied("score * t[e[q_idx, kv_idx], h]", true) == "e");
    CHECK(copied("score * t[e[q_idx, kv_idx], h] + p[h, q_idx, kv_idx]", true) == "p");
}

TEST_CASE("parts of random programs are those programs") {
    int found = 0;
    for (const std::uint64_t seed : test::seeds(400)) {
        auto mod = passes::lower(test::random_program(seed, {.gradients = false}), {});
        if (!mod) continue;
        const passes::DecomposedMod folded = passes::decompose_score(*mod);
        if (!folded.parts.found()) continue;
        ++found;
        CAPTURE(seed);
        test::Instance instance(folded.mod.program, seed);
        for (int point = 0; point < 5; ++point) {
            instance.move();
            const double want =
                ir::evaluate_real(folded.mod.program, folded.mod.score, instance.environment());
            if (std::isfinite(want) && std::abs(want) < 1e6 && std::abs(want) > 1e-3)
                check_at(folded, instance.environment());
        }
    }
    MESSAGE(found, " of them are affine");
}
