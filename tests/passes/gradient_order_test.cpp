#include <algorithm>

#include <doctest/doctest.h>

#include "passes/gradient_order.h"
#include "program_of.h"

using namespace flexc;
using passes::HeadsAtOnce;

namespace {

passes::Mod mod_of(const std::string& declaration, const std::string& score) {
    return test::lowered("buffer t: f32[" + declaration + "] grad\nbuffer at: i32[KV_LEN]\n" +
                         "score_mod = " + score);
}
bool is_dense(const std::string& declaration, const std::string& score) {
    const passes::Mod mod = mod_of(declaration, score);
    CHECK(passes::exact_gradients(mod).size() == (passes::has_dense_gradient(mod) ? 0 : 1));
    return passes::is_dense_gradient(mod, 0);
}
HeadsAtOnce at_once(const std::string& declaration, const std::string& score) {
    return passes::heads_at_once(mod_of(declaration, score));
}

} // namespace

TEST_CASE("a gradient is dense where one read tells all elements of a head apart") {
    CHECK(is_dense("Q_LEN, KV_LEN", "score + t[q_idx, kv_idx]"));
    CHECK(is_dense("KV_LEN, H, Q_LEN", "score * t[kv_idx + 3, h, 7 - q_idx + h]"));
    CHECK(is_dense("H, N, KV_LEN", "score + t[h, q_idx + q_idx - 3, kv_idx]"));
    for (const char* score :
         {"score + t[q_idx, kv_idx // 2]", "score + t[q_idx - kv_idx, kv_idx]",
          "score + t[q_idx, at[kv_idx]]", "score + t[q_idx, q_idx]", "score + t[kv_idx, b]",
          "score + t[q_idx - q_idx, kv_idx]", "score + t[q_idx, kv_idx] + t[kv_idx, q_idx]",
          "score + t[q_idx, min(kv_idx, 5)]", "score + t[q_idx + at[kv_idx], kv_idx]"}) {
        CAPTURE(score);
        CHECK(!is_dense("N, KV_LEN", score));
    }
    CHECK(!is_dense("N", "score + t[q_idx * KV_LEN + kv_idx]"));
}

TEST_CASE("heads that meet at dense gradients take turns, others do not") {
    const std::string two = ", Q_LEN, KV_LEN", at = "q_idx, kv_idx]";
    CHECK(at_once("B, H" + two, "score + t[b, h, " + at) == HeadsAtOnce::all);
    CHECK(at_once("B, H_KV" + two, "score + t[b, h_kv, " + at) == HeadsAtOnce::all);
    CHECK(at_once("H" + two, "score + t[h, " + at) == HeadsAtOnce::of_batch);
    CHECK(at_once("B" + two, "score + t[b, " + at) == HeadsAtOnce::one);
    CHECK(at_once("Q_LEN, KV_LEN", "score + t[" + at) == HeadsAtOnce::one);
    CHECK(at_once("H" + two, "score + t[h // 2, " + at) == HeadsAtOnce::one);
    CHECK(at_once("H, N", "score + t[h, q_idx - kv_idx]") == HeadsAtOnce::all);
    CHECK(at_once("KV_LEN", "score + t[kv_idx]") == HeadsAtOnce::all);
}

TEST_CASE("only deterministic programs ask where a launch starts") {
    const std::string text = "buffer t: f32[Q_LEN, KV_LEN] grad\nscore + t[q_idx, kv_idx]";
    const auto asks = [&](bool deterministic) {
        const passes::Mod mod = test::lowered(text, {.deterministic = deterministic});
        return std::ranges::count(passes::argument_slots(mod),
                                  passes::ArgumentSlot::Kind::first_kv_head,
                                  &passes::ArgumentSlot::kind);
    };
    CHECK(asks(true) == 1);
    CHECK(asks(false) == 0);
}
