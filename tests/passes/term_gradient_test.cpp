// Which gradients of sums' terms are summed over tiles, and by which factors.
#include "passes/term_gradient.h"

#include <cmath>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include "ir/interp.h"
#include "passes/describe.h"
#include "passes/gradient_sum.h"
#include "passes/hoist.h"
#include "program_of.h"
#include "random_program.h"
#include "term_program.h"

namespace {

using namespace flexc;

passes::Mod mod_of(const std::string& score, const passes::PipelineOptions& options = {}) {
    return test::lowered("buffer w: f32[H, R] grad\nbuffer m: f32[16] grad\n"
                         "buffer n: f32[16] grad\nbuffer u: f32[H, Q_LEN, 16] grad\n"
                         "buffer v: f32[H, KV_LEN, 16] grad\nbuffer t: f32[99, 16] grad\n"
                         "buffer x: f32[Q_LEN, KV_LEN]\nscore_mod = " +
                             score,
                         options);
}

// The places of the terms' sums, in the order of the reads' buffers. terms: the function that finds
// those of a kernel.
std::string places(const std::string& score, decltype(passes::terms_by_tile)& terms) {
    const passes::Mod mod = mod_of(score);
    std::string names;
    for (std::uint32_t buffer = 0; buffer < mod.program.buffers.size(); ++buffer)
        for (const passes::ReadGradient& gradient : terms(mod))
            if (mod.program.graph[gradient.read].symbol == buffer)
                names += std::string(passes::name(passes::place_of_term(mod, gradient.read))) + " ";
    return names;
}
std::string places(const std::string& score) { return places(score, passes::terms_by_tile); }

} // namespace

TEST_CASE("terms are summed by what their addresses depend on") {
    const std::string x = "x[q_idx, kv_idx]";
    CHECK(places("score + sum(i in 0..16: w[h, i] * relu(m[i] * " + x + " + n[i]))") ==
          "head launch launch ");
    CHECK(places("score + sum(i in 0..16: u[h, q_idx, i] * v[h, kv_idx, i])") == "row column ");
    CHECK(places("score * sum(i in 0..16: w[h, i] * m[i])") == "head launch ");
    CHECK(places("score + " + x + " * sum(i in 0..16: w[b, i])") == "head ");
    CHECK(places("score + " + x + " * sum(i in 0..16: t[q_idx - kv_idx, i] * m[i])") ==
          "launch element ");
    // Terms that are functions of the distance have the sums of dS over diagonals.
    CHECK(places("score + sum(i in 0..16: w[h, i] * m[i])") == "");
    CHECK(places("score + sum(i in 0..16: t[q_idx - kv_idx, i] * m[i])") == "");
    // A short sum has no terms that are a loop's.
    CHECK(places("score * sum(i in 0..4: w[h, i] * m[i])") == "");
    // An index that uses the score.
    CHECK(places("score * sum(i in 0..16: t[int(score), i])") == "");
}

TEST_CASE("generic kernels sum all terms over tiles but those by an index that uses the score") {
    const auto generic = [](const std::string& score) {
        return places(score, passes::terms_by_generic_tile);
    };
    for (const char* const score :
         {"score + sum(i in 0..16: u[h, q_idx, i] * v[h, kv_idx, i])",
          "score * sum(i in 0..R: w[h, i] * m[i])",
          "score + x[q_idx, kv_idx] * sum(i in 0..16: t[q_idx - kv_idx, i] * m[i])"})
        CHECK(generic(score) == places(score));
    CHECK(generic("score + sum(i in 0..16: w[h, i] * m[i])") == "head launch ");
    CHECK(generic("score * sum(i in 0..16: m[i] * t[int(score), i])") == "launch ");
    CHECK(generic("score * sum(i in 0..4: w[h, i] * m[i])") == "");
    const passes::Mod mod = mod_of("score + sum(i in 0..16: w[h, i] * kv_idx)");
    const auto terms = passes::terms_by_generic_tile(mod);
    REQUIRE(terms.size() == 1);
    CHECK(terms[0].element_factor != ir::kNoNode);
}

TEST_CASE("nothing is left to elements but what generic kernels add") {
    const auto by_element = [](const std::string& score) {
        return passes::adds_terms_by_element(mod_of(score));
    };
    CHECK(!by_element("score * sum(i in 0..16: w[h, i] * m[i])"));
    CHECK(!by_element("score + sum(i in 0..16: w[h, i] * m[i])"));
    CHECK(!by_element("score + w[h, 0]"));
    CHECK(by_element("score * sum(i in 0..16: t[int(score), i])"));
    auto ragged = front::compile_text(
        {.source = dsl::Source("<test>", "buffer w: f32[H, 16] grad\n"
                                         "score_mod = score * sum(i in 0..16: w[h, i])"),
         .query_layout = Layout::ragged,
         .key_layout = Layout::ragged});
    REQUIRE(ragged.program);
    CHECK(passes::adds_terms_by_element(*passes::lower(std::move(*ragged.program), {})));
}

TEST_CASE("a warp keeps a word for each head's read and term, and one for each key") {
    const auto words = [](const std::string& score) {
        const passes::Mod mod = mod_of(score);
        return passes::count_term_reads(mod, passes::terms_by_tile(mod)).words(16);
    };
    CHECK(words("score * sum(i in 0..16: w[h, i] * m[i])") == 2 * 16);
    CHECK(words("score * sum(i in 3..16: w[h, i])") == 13);
    CHECK(words("score * sum(i in 0..9: w[h, i]) + sum(i in 0..7: m[i] * kv_idx)") == 9 + 7);
    CHECK(words("score + sum(i in 0..16: u[h, q_idx, i] * v[h, kv_idx, i])") == 16 * 16);
    CHECK(words("score + sum(i in 0..16: u[h, q_idx, i])") == 0);
    CHECK(words("score * sum(i in 0..R: w[h, i])") == 0); // how many is not known
    CHECK(words("score") == 0);
}

TEST_CASE("numbers of a head are factors of sums, not of elements") {
    const auto element = [](const std::string& score) {
        const passes::Mod mod = mod_of(score);
        const auto terms = passes::terms_by_tile(mod);
        REQUIRE(terms.size() == 1);
        return passes::formula(mod.program, terms[0].element_factor);
    };
    CHECK(element("score * sum(i in 0..16: w[h, i])") == "score");
    CHECK(element("score * sum(i in 0..16: -w[h, i] * h * i)") == "score");
    CHECK(element("score + sum(i in 0..16: w[h, i] * x[q_idx, kv_idx] / (h + 2))") ==
          "x[q_idx, kv_idx]");
}

TEST_CASE("both factors make the derivative") {
    const std::uint64_t seed = test::first_seed();
    CAPTURE(seed);
    test::Random random(seed);
    int terms = 0;
    for (int i = 0; i < 40; ++i) {
        const std::string text = test::term_program(random);
        CAPTURE(text);
        const passes::Mod mod = test::lowered(text);
        test::Instance instance(mod.program, seed + static_cast<std::uint64_t>(i));
        for (int point = 0; point < 5; ++point) {
            instance.move();
            ir::Environment at = instance.environment();
            at.counter = random.integer(0, 4);
            for (const passes::ReadGradient& gradient : passes::terms_by_tile(mod)) {
                const auto value = [&](ir::NodeId id) {
                    return ir::evaluate_real(mod.program, id, at);
                };
                const double product = value(gradient.head_factor) * value(gradient.element_factor);
                CHECK(product == doctest::Approx(value(gradient.partial)));
                ++terms;
            }
        }
    }
    CHECK(terms > 0);
}
