// What the size of a program decides before anything is compiled.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "front/library.h"
#include "hopper_program.h"
#include "passes/pipeline.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/plan.h"
#include "plan/work.h"
#include "program_of.h"
#include "random_program.h"

using namespace flexc;
using namespace flexc::plan;

namespace {

// Of the first variant of a pass, for calls as they usually are.
std::ptrdiff_t hopper_candidates(const std::vector<Variant>& variants) {
    return std::ranges::count(variants.front().candidates, "sm90", &KernelConfig::family);
}

} // namespace

TEST_CASE("a program larger than usual has few kernels for Hopper, then the generic one") {
    // Half of these programs are large, and a fifth have a large score mod too: the draws go on
    // until enough are, so that no seed has too few.
    constexpr std::uint64_t kMostDraws = 1000;
    int large = 0, large_scores = 0;
    for (std::uint64_t seed = test::first_seed();
         large < test::trials(24) || large_scores < test::trials(8); ++seed) {
        CAPTURE(seed);
        REQUIRE(seed < test::first_seed() + kMostDraws);
        const auto program =
            test::hopper_program(test::random_program(seed, {.operators = 120, .sinks = false}));
        if (!program) continue;
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        // Of kernels that share gradients, the first one's program is smaller.
        if (!is_large(program_of(plan->backward.front(), *program).mod())) continue;
        ++large;
        const auto generic_follows = [](const std::vector<KernelConfig>& candidates) {
            return candidates.back().family == "sm80" && candidates.back().spills.tolerated > 0;
        };
        const std::vector<KernelConfig>& backward = plan->backward.front().candidates;
        const std::ptrdiff_t backwards = hopper_candidates(plan->backward);
        CHECK(backwards <= 2);
        // Kernels that share gradients are Hopper's alone.
        if (plan->backward.front().further.empty())
            CHECK(generic_follows(backward));
        else
            CHECK(std::ranges::all_of(
                backward, [](const KernelConfig& one) { return one.family == "sm90"; }));
        // What the first may pass over is the other form of it.
        CHECK(backward.front().spills.saving_forms + 1 >= backwards);
        if (backward.front().spills.saving_forms > 0) {
            CHECK(backward[1].form.saves_registers == 2);
            CHECK(backward[1].spills.saving_forms == 0);
        }
        // A forward may have a small score mod beside large derivatives.
        if (!has_large_score(program->mod())) continue;
        ++large_scores;
        const std::vector<KernelConfig>& forward = plan->forward.front().candidates;
        CHECK(hopper_candidates(plan->forward) <= 2);
        CHECK(generic_follows(forward));
        if (hopper_candidates(plan->forward) == 2) {
            CHECK((forward[1].block.warps < forward[0].block.warps ||
                   forward[1].sum_elements < forward[0].sum_elements));
            CHECK(forward[1].spills.tolerated >= 64);
        }
    }
}

TEST_CASE("the library's mods stay below the limits of long code") {
    for (const front::LibraryMod& entry : front::library()) {
        CAPTURE(entry.name);
        const auto program = test::hopper_program(test::program_of(std::string(entry.text)));
        REQUIRE(program);
        CHECK_FALSE(is_large(program->mod()));
        const KernelRequest request = program->request(KernelKind::backward_fused);
        CHECK(request.work.element_instructions <= kMostWrittenOut);
        if (request.has_score_mod) CHECK(request.work.row_instructions <= kMostOfPosition);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        const KernelConfig& config = plan->backward.front().candidates.front();
        if (config.family == "sm90") CHECK_FALSE(config.form.has_long_scores);
    }
}

TEST_CASE("a large mask makes a program large") {
    std::string mask = "mask_mod = q_idx >= kv_idx";
    for (int i = 1; i < 40; ++i)
        mask += " and q_idx % " + std::to_string(i + 2) + " != kv_idx";
    const auto program = test::hopper_program(test::program_of(mask));
    REQUIRE(program);
    CHECK(is_large(program->mod()));
}

TEST_CASE("gradients of buffers by functions of scores are long at wide heads") {
    const auto are_long = [](const std::string& score, int head_dim) {
        const auto program = test::hopper_program(
            test::program_of("buffer c: f32[H] grad\nscore_mod = " + score), head_dim);
        REQUIRE(program);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        return plan->backward.front().candidates.front().form.has_long_scores;
    };
    CHECK(are_long("c[h] * tanh(score / c[h])", 128));
    CHECK_FALSE(are_long("c[h] * tanh(score / c[h])", 64));
    CHECK_FALSE(are_long("c[h] * score", 128));       // no function
    CHECK_FALSE(are_long("c[h] + tanh(score)", 128)); // the gradient uses none
}

TEST_CASE("a usual program has several kernels for Hopper to choose from") {
    const auto program =
        test::hopper_program(test::program_of("buffer t: f32[KV_LEN] grad\n"
                                              "score_mod = score * sigmoid(t[kv_idx] * score)\n"));
    REQUIRE(program);
    const auto plan = make_plan(*program);
    REQUIRE(plan);
    CHECK(hopper_candidates(plan->forward) > 1);
    CHECK(hopper_candidates(plan->backward) > 1);
}

namespace {

// `count` functions of the score, one after the other.
std::unique_ptr<TargetProgram> nested_program(int count, const std::string& mask) {
    std::string score = "score";
    for (int i = 0; i < count; ++i)
        score = "tanh(" + score + " * 0.5)";
    return test::hopper_program(test::program_of("score_mod = " + score + "\n" + mask));
}
const std::string kWindow = "mask_mod = q_idx >= kv_idx and q_idx - kv_idx < 512\n";
const std::string kTiles = "mask_mod = abs(q_idx // 16 - kv_idx // 16) <= 2\n";

} // namespace

TEST_CASE("copies of what is computed for each element are few where it is much") {
    const auto is_long = [](int count, const std::string& mask) {
        const auto program = nested_program(count, mask);
        REQUIRE(program);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        const std::vector<KernelConfig>& candidates = plan->backward.front().candidates;
        REQUIRE(candidates.front().family == "sm90");
        for (const KernelConfig& config : candidates)
            CHECK(config.form.has_long_scores ==
                  (config.family == "sm90" && candidates.front().form.has_long_scores));
        CHECK(candidates.front().form.writes_scores_once);
        return candidates.front().form.has_long_scores;
    };
    CHECK_FALSE(is_long(1, ""));
    CHECK_FALSE(is_long(1, kWindow));
    CHECK_FALSE(is_long(3, "")); // a band brings a third copy
    CHECK(is_long(3, kWindow));
    CHECK(is_long(5, ""));
    // A block mask leaves fewer registers.
    CHECK_FALSE(is_long(1, kTiles));
    CHECK(is_long(3, kTiles));
    // Together, copies are no longer than a bound, whatever the program.
    for (const std::uint64_t seed : test::seeds(60)) {
        CAPTURE(seed);
        const auto program =
            test::hopper_program(test::random_program(seed, {.operators = 15, .sinks = false}));
        if (!program) continue;
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        const Variant& variant = plan->backward.front();
        const int copies = program->mod().band.found() ? 3 : 2;
        if (variant.candidates.front().family == "sm90" &&
            !variant.candidates.front().form.has_long_scores)
            CHECK(copies * variant.request.work.element_instructions <= 140);
    }
}

TEST_CASE("derivatives that elements compute from positions at length are folded into P") {
    const auto request_of = [](const std::string& text) {
        const auto program = test::hopper_program(test::program_of(text));
        REQUIRE(program);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        return plan->backward.front().request;
    };
    const std::string buffers =
        "buffer g: f32[H, Q_LEN]\nbuffer x: f32[KV_LEN]\nscore_mod = score ";
    for (const char* mod : {"* exp(-sqrt(x[q_idx] * x[q_idx] + x[kv_idx] * x[kv_idx]))",
                            "/ (1 + sqrt(1 + abs(x[q_idx] - x[kv_idx]))) + x[kv_idx]"}) {
        CAPTURE(mod);
        const KernelRequest request = request_of(buffers + mod);
        CHECK(request.derivative.is_costly);
        CHECK_FALSE(request.derivative.uses_score);
        CHECK(request.folds_derivative());
        // A buffer's gradient needs what is not multiplied by the derivative.
        const KernelRequest learned =
            request_of("buffer y: f32[KV_LEN] grad\n" + buffers + mod + " + y[kv_idx]");
        CHECK_FALSE(learned.folds_derivative());
    }
    // What an element adds is no derivative, nor are few instructions many, or those of a row.
    for (const char* mod : {"+ exp(-sqrt(x[q_idx] * x[q_idx] + x[kv_idx] * x[kv_idx]))",
                            "* x[kv_idx] * x[q_idx]", "* exp(-sqrt(abs(g[h, q_idx])))"}) {
        CAPTURE(mod);
        CHECK_FALSE(request_of(buffers + mod).derivative.is_costly);
    }
}

TEST_CASE("what is added to elements is computed in parts where much is read") {
    // Of a backward those for any tensors, which one kernel of each program computes.
    const auto candidates_of = [](const std::string& text, bool backward, int head_dim = 128) {
        const auto program = test::hopper_program(test::program_of(text), head_dim);
        REQUIRE(program);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        return (backward ? plan->backward.back() : plan->forward.front()).candidates;
    };
    const auto text_of = [](const char* mod) {
        return std::string(front::find_library_mod(mod)->text);
    };
    for (const char* mod : {"graphormer", "graph_edges"}) {
        CAPTURE(mod);
        const bool starts_with_it = std::string_view(mod) == "graphormer";
        const KernelConfig narrow = candidates_of(text_of(mod), false, 64).front();
        CHECK(plan::sm90::forward_of(narrow)->computes_in_parts);
        const KernelConfig wide = candidates_of(text_of(mod), false).front();
        CHECK(plan::sm90::forward_of(wide)->computes_in_parts == starts_with_it);
        for (const KernelConfig& config : candidates_of(text_of(mod), true))
            CHECK(config.form.writes_scores_once);
    }
    // Neither functions nor a mask that reads much.
    std::string mask = "buffer t: f32[KV_LEN, Q_LEN]\nscore_mod = score + t[kv_idx, q_idx]\n"
                       "mask_mod = t[kv_idx, q_idx] > 0.5";
    for (int i = 1; i < 8; ++i)
        mask += " and t[(kv_idx * q_idx + " + std::to_string(i) + ") % 64, 0] > 0.5";
    for (const std::string& text : {text_of("graph_distance"), text_of("gelu_attention"), mask}) {
        CAPTURE(text);
        for (const KernelConfig& config : candidates_of(text, false))
            if (const auto* forward = plan::sm90::forward_of(config))
                CHECK_FALSE(forward->computes_in_parts);
        for (const KernelConfig& config : candidates_of(text, true))
            if (config.family != "sm90") CHECK_FALSE(config.form.writes_scores_once);
    }
}

TEST_CASE("what computes much from values of queries has no tiles of 128 queries") {
    const auto longest = [](const char* mod) {
        const auto program = test::hopper_program(
            test::program_of(std::string(front::find_library_mod(mod)->text)), 64);
        REQUIRE(program);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        return plan->backward.front().candidates.front().block.query_tile;
    };
    // Of paged_alibi it is a derivative with 64-bit integers.
    for (const char* mod : {"alibi_2d", "point_distance", "paged_alibi"})
        CHECK(longest(mod) == 64);
    CHECK(longest("chosen_blocks") == 128); // for a mask
    CHECK(longest("checkerboard") == 64);   // for a derivative of each position
}

TEST_CASE("mods that compute little for an element have a copy for each kind of tile") {
    const auto writes_once = [](const char* mod) {
        const auto program =
            test::hopper_program(test::program_of(std::string(front::find_library_mod(mod)->text)));
        REQUIRE(program);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        return plan->backward.front().candidates.front().form.writes_scores_once;
    };
    for (const char* mod : {"causal", "sliding_window", "document", "alibi", "dense_bias"}) {
        CAPTURE(mod);
        CHECK_FALSE(writes_once(mod));
    }
    for (const char* mod : {"softcap", "gelu_attention", "alibi_2d", "distance_decay", "swin"}) {
        CAPTURE(mod);
        CHECK(writes_once(mod));
    }
}

TEST_CASE("a forward whose elements compute much visits the first tile of keys in its loop") {
    const auto writes_once = [](const std::string& text) {
        const auto program = test::hopper_program(test::program_of(text));
        REQUIRE(program);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        for (const KernelConfig& config : plan->forward.front().candidates)
            if (plan::sm90::forward_of(config) != nullptr) {
                if (!config.schedule->overlaps) CHECK_FALSE(config.form.writes_scores_once);
                if (config.form.writes_scores_once) CHECK(config.spills.tolerated >= 8);
            }
        return plan->forward.front().candidates.front().form.writes_scores_once;
    };
    // What is tabulated by distance no element computes, and a mask has no part in it. Elements of
    // the last three compute less than it takes.
    for (const char* mod :
         {"causal", "sliding_tile_3d", "alibi", "dense_bias", "t5_bias", "softcap",
          "gated_relative_bias", "alibi_2d", "checkerboard", "point_distance"}) {
        CAPTURE(mod);
        CHECK_FALSE(writes_once(std::string(front::find_library_mod(mod)->text)));
    }
    for (const char* mod : {"gelu_attention", "swin", "mla_rope"}) {
        CAPTURE(mod);
        CHECK(writes_once(std::string(front::find_library_mod(mod)->text)));
    }
    CHECK(writes_once("buffer a: f32[KV_LEN, 16]\n"
                      "score_mod = score + sum(i in 0..16: a[kv_idx, i] * q_idx)"));
}

TEST_CASE("a usual program whose elements take long has three forms of a tile at most") {
    const auto forms = [](int count, const std::string& mask) {
        const auto program = nested_program(count, mask);
        REQUIRE(program);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        return hopper_candidates(plan->backward);
    };
    CHECK(forms(1, "") == 4);
    CHECK(forms(3, "") == 3);
    CHECK(forms(3, kWindow) == 3);
}

TEST_CASE("tables are on chip where places in them are long to compute for each element, too") {
    const auto has_tables = [](std::string_view mod, Calls calls = Calls::usual) {
        const auto program =
            test::hopper_program(test::program_of(std::string(front::find_library_mod(mod)->text)));
        REQUIRE(program);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        const auto variant = std::ranges::find(plan->forward, calls, &Variant::calls);
        REQUIRE(variant != plan->forward.end());
        return variant->candidates.front().decomposition.stages_tables();
    };
    // Few entries are kinds of pairs.
    CHECK_FALSE(has_tables("graph_distance"));
    CHECK(has_tables("graph_distance", Calls::large_tables));
    CHECK(has_tables("graphormer"));
    CHECK(has_tables("graph_edges"));
}

TEST_CASE("library mods have the form of the warps beside the MMAs where these do more than load") {
    const auto has_form = [](std::string_view mod) {
        const auto program =
            test::hopper_program(test::program_of(std::string(front::find_library_mod(mod)->text)));
        REQUIRE(program);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        const std::vector<KernelConfig>& candidates = plan->backward.front().candidates;
        REQUIRE(candidates.front().family == "sm90");
        return std::ranges::find(candidates, 1, [](const KernelConfig& config) {
                   return config.family == "sm90" ? config.form.saves_registers : 0;
               }) != candidates.end();
    };
    // Values of keys, heads, distances and of the score alone; masks, if they compute little for a
    // query.
    for (const char* mod :
         {"key_bias", "alibi", "distance_bias", "t5_bias", "distance_decay", "softcap",
          "gelu_attention", "causal", "sliding_window", "document", "neighborhood_2d"}) {
        CAPTURE(mod);
        CHECK_FALSE(has_form(mod));
    }
    // Values of queries; copies of a dense bias; masks of which a query takes many instructions.
    for (const char* mod :
         {"stream_bias", "indexed_bias", "row_scale", "point_distance", "dense_bias", "full_bias",
          "sliding_tile_2d", "sliding_tile_3d", "neighborhood_2d_tiled"}) {
        CAPTURE(mod);
        CHECK(has_form(mod));
    }
}

TEST_CASE("what memory adds up for each element is left to the generic kernel where it is much") {
    const auto first = [](const char* text) {
        const auto program = test::hopper_program(test::program_of(text));
        REQUIRE(program);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        return plan->backward.front().candidates.front();
    };
    CHECK(first("buffer t: f32[9] grad\nbuffer i: i32[Q_LEN, KV_LEN]\n"
                "score_mod = score + t[i[q_idx, kv_idx]]\n")
              .family == "sm90");
    // Tables with as many entries as there are keys are summed by no warps.
    const KernelConfig many = first("buffer t: f32[4, KV_LEN] grad\nbuffer i: i32[Q_LEN, KV_LEN]\n"
                                    "score_mod = score * (t[0, i[q_idx, kv_idx]] + "
                                    "t[1, i[q_idx, kv_idx]] + t[2, i[q_idx, kv_idx]])\n");
    CHECK(many.family == "sm80");
    CHECK(many.reason.find("several gradients of each element") != std::string::npos);
    const KernelConfig at_scores =
        first("buffer t: f32[4] grad\nscore_mod = score + t[int(score)]\n");
    CHECK(at_scores.family == "sm80");
    CHECK(at_scores.reason.find("uses the score") != std::string::npos);
}

TEST_CASE("derivatives by 64-bit integers of an element save registers from the start") {
    const auto first_form = [](const std::string& text, int head_dim = 128) {
        const auto program = test::hopper_program(test::program_of(text), head_dim);
        REQUIRE(program);
        const auto plan = make_plan(*program);
        REQUIRE(plan);
        return plan->backward.front().candidates.front().form.saves_registers;
    };
    const std::string key = "buffer at: i64[KV_LEN]\n";
    const std::string learned = "buffer slopes: f32[H] grad\n" + key;
    CHECK(first_form(learned + "score_mod = score + slopes[h] * (at[kv_idx] - q_idx)") == 3);
    CHECK(first_form(learned + "score_mod = score + slopes[h] * (at[kv_idx] - q_idx)", 64) == 0);
    CHECK(first_form(learned + "score_mod = score + slopes[h] * (kv_idx - q_idx)") == 0);
    // Of a key, computed once for all elements.
    CHECK(first_form(learned + "score_mod = score + slopes[h] * (at[kv_idx] + 1)") == 0);
    CHECK(first_form("buffer slopes: f32[H]\n" + key +
                     "score_mod = score + slopes[h] * (at[kv_idx] - q_idx)") == 0);
}
