// Which tiles of a dense bias Hopper's forward copies, where elements use it in a band of
// diagonals: those that have an element of the band.
#include <optional>
#include <random>
#include <string>

#include <doctest/doctest.h>

#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "draws.h"
#include "host_arguments.h"
#include "host_module.h"
#include "passes/decompose.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/plan.h"
#include "random_data.h"
#include "sm90/arguments.h"

namespace {

using namespace flexc;

using Function = bool(const std::uint64_t* words, const ::sm90::KernelArguments*, int first_row,
                      int rows, int first_key, int keys);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/forward_dense_bias.cuh"
using namespace sm90;
extern "C" bool run(const unsigned long long* words, const KernelArguments* attention,
                    int first_row, int rows, int first_key, int keys) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, 0);
    return BandOfBias(*attention, arguments, place).meets(first_row, rows, first_key, keys);
}
)";

passes::DecomposedMod decomposed(const std::string& score) {
    auto mod = test::lower_text(
        "buffer p: f32[H, Q_LEN, KV_LEN]\nparam w: i32 = 9\nscore_mod = " + score, 64, 64, false);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    return passes::decompose_score(*mod);
}

} // namespace

TEST_CASE("tiles of a dense bias are copied where a band has elements") {
    std::mt19937 random(20261203);
    const auto below = test::draws_below(random);
    struct Member {
        std::string score;
        std::optional<long long> low, high; // of kv - q
    };
    const std::string p = "p[h, q_idx, kv_idx]";
    for (const Member& member :
         {Member{"score + where(abs(q_idx - kv_idx) < 64, " + p + ", 0.0)", -63, 63},
          Member{"score + where(kv_idx - q_idx > 20, 1.0, " + p + ")", {}, 20},
          Member{"score * 0.5 + where(abs(kv_idx - q_idx) <= w, tanh(" + p + ") + " + p + ", 0.0)",
                 -9, 9},
          Member{"score + where(q_idx >= kv_idx, where(q_idx - kv_idx < 100, " + p + ", 1.0), 2.0)",
                 -99, 0},
          Member{"tanh(score) + where(q_idx - kv_idx == 5, " + p + ", 0.0)", -5, -5}}) {
        CAPTURE(member.score);
        const auto [mod, parts] = decomposed(member.score);
        CHECK(parts.bias_band.low.size() == (member.low ? 1 : 0));
        CHECK(parts.bias_band.high.size() == (member.high ? 1 : 0));
        const plan::KernelConfig config = plan::candidates({.arch = 90,
                                                            .dtype = DType::bf16,
                                                            .head_dim = 64,
                                                            .head_dim_v = 64,
                                                            .has_score_mod = true,
                                                            .terms = {.plain = {.bias_bytes = 4}}})
                                              .front();
        const test::HostModule module(std::string(kText),
                                      cuda::emit_mod(mod, parts, config, {.dtype = DType::bf16}));
        ir::Environment at;
        at.sizes = {1, 1, 1, 500, 500, 64, 64};
        const test::RandomData data(mod.program, at, random);
        const test::HostArguments arguments(mod, at);
        for (int round = 0; round < 200; ++round) {
            ::sm90::KernelArguments attention{};
            attention.batch = attention.heads = attention.kv_heads = 1;
            attention.q_len = attention.kv_len = 500;
            attention.q_offset = below(2) * below(200);
            attention.kv_offset = below(2) * below(200);
            const int first_row = below(300), rows = 1 + below(128), first_key = below(300),
                      keys = 1 + below(128);
            bool expected = false;
            for (int row = first_row; row < first_row + rows; ++row)
                for (int key = first_key; key < first_key + keys; ++key) {
                    const long long distance = key + attention.kv_offset - row - attention.q_offset;
                    expected = expected || (distance >= member.low.value_or(distance) &&
                                            distance <= member.high.value_or(distance));
                }
            CHECK(module.function<Function>("run")(arguments.words(), &attention, first_row, rows,
                                                   first_key, keys) == expected);
        }
    }
}

TEST_CASE("a dense bias that is used elsewhere, or in no band, has none") {
    const std::string p = "p[h, q_idx, kv_idx]";
    for (const std::string& score :
         {"score + " + p, "score + where(q_idx == 0, 1.0, " + p + ")",
          "score + where(abs(q_idx - kv_idx) < 9, " + p + ", 0.5 * " + p + ")",
          "score + " + p + " + where(abs(q_idx - kv_idx) < 9, " + p + ", 0.0)",
          "score + where(" + p + " < 1, where(abs(q_idx - kv_idx) < 9, " + p + ", 0.0), 2.0)"}) {
        CAPTURE(score);
        const auto [mod, parts] = decomposed(score);
        CHECK(parts.bias_read != ir::kNoNode);
        CHECK(!parts.bias_band.found());
    }
}
