// Kinds of keys in forward_sm90.cu: products of the columns that threads of the host store, against
// the score mod of each element.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "host_arguments.h"
#include "host_module.h"
#include "ir/interp.h"
#include "passes/decompose.h"
#include "plan/plan.h"
#include "random_data.h"
#include "sm90/arguments.h"

namespace {

using namespace flexc;

// products: [16 rows][keys of a tile], of a warp.
using Function = void(const std::uint64_t* words, const ::sm90::KernelArguments*, int head,
                      int warp_row, int first_key, float* products);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/forward_key_kinds.cuh"
using namespace sm90;
static float element(unsigned panels, int panel_bytes, int row, int column) {
    const int byte = row * 128 + column % 64 * 2;
    return flexc_to_float(loaded<flexc_bf16>(panels + column / 64 * panel_bytes +
                                             (byte ^ (byte >> 3 & 0x70))));
}
extern "C" void run(const unsigned long long* words, const KernelArguments* attention, int head,
                    int warp_row, int first_key, float* products) {
    using Kinds = MultipliedKeyKinds;
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    const SequenceLength length(*attention, place.b);
    constexpr unsigned kQueries = 1 << 16, kKeys = 1 << 17;
    std::memset(memory_of_block, 0xff, sizeof memory_of_block);
    const int tile_row = warp_row % mod::kQueryTile;
    bool are_finite = true;
    for (int lane = 0; lane < 32; ++lane)
        are_finite &= Kinds::store_query(arguments, place, length.q_idx(warp_row + lane / 2),
                                         1 / attention->scale, kQueries, tile_row + lane / 2,
                                         lane % 2);
    for (int key = 0; key < mod::kKeyTile; ++key)
        Kinds::store_key(kKeys, key,
                         Kinds::kind_of(*attention, arguments, place, first_key + key));
    constexpr int kColumns = mod::kSizes.kind_columns;
    for (int row = 0; row < 16; ++row)
        for (int key = 0; key < mod::kKeyTile; ++key) {
            float sum = 0;
            for (int column = 0; column < 2 * kColumns; ++column) {
                const int of_key = kColumns == 8 ? column : column % kColumns;
                sum += element(kQueries, kQueryPanel, tile_row + row, column) *
                       element(kKeys, kKeyPanel, key, of_key);
            }
            *products++ = are_finite ? sum : Kinds::restored(sum);
        }
}
)";

void check(const std::string& text, int kinds, std::mt19937& random, double special = 0) {
    CAPTURE(text);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    auto mod = test::lower_text(text, 64, 64, false);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    const passes::DecomposedMod decomposed = passes::decompose_score_with_kinds(*mod);
    REQUIRE(decomposed.parts.kinds.count == kinds);
    const plan::KernelRequest request{
        .arch = 90, .dtype = DType::f16, .has_score_mod = true, .key_kinds = kinds};
    const plan::KernelConfig config = plan::candidates(request).front();
    REQUIRE(config.specialized.has_value());
    REQUIRE(config.specialized->sizes.kind_columns >= kinds);
    const test::HostModule module(
        std::string(kText),
        cuda::emit_mod(decomposed.mod, decomposed.parts, config, {.dtype = DType::f16}));
    for (int round = 0; round < 4; ++round) {
        ::sm90::KernelArguments attention{};
        attention.batch = 2;
        attention.heads = 4;
        attention.kv_heads = 2;
        attention.q_len = 90 + below(200);
        attention.kv_len = 130 + below(200);
        attention.scale = 0.088F;
        attention.q_offset = below(2) * below(60);
        attention.kv_offset = below(2) * below(60);
        ir::Environment at;
        at.sizes = {
            2,  4, 2, attention.q_len + attention.q_offset, attention.kv_len + attention.kv_offset,
            64, 64};
        test::RandomData data(mod->program, at, random);
        if (special != 0) data.replace_some(special, random);
        const test::HostArguments arguments(decomposed.mod, at);
        const int head = below(8), warp_row = 16 * below((attention.q_len + 15) / 16);
        const int first_key = config.key_tile * below((attention.kv_len - 1) / config.key_tile + 1);
        std::vector<float> products(static_cast<std::size_t>(16 * config.key_tile));
        module.function<Function>("run")(arguments.words(), &attention, head, warp_row, first_key,
                                         products.data());
        at.b = head / 4;
        at.h = head % 4;
        at.h_kv = at.h / 2;
        at.score = 0;
        int wrong = 0;
        for (std::size_t i = 0; i < products.size(); ++i) {
            const int q = warp_row + static_cast<int>(i) / config.key_tile;
            const int kv = first_key + static_cast<int>(i) % config.key_tile;
            if (q >= attention.q_len || kv >= attention.kv_len) continue;
            at.q_idx = q + attention.q_offset;
            at.kv_idx = kv + attention.kv_offset;
            const double expected = ir::evaluate_real(mod->program, mod->score, at);
            const double found = static_cast<double>(products[i]) * attention.scale;
            if (!(expected == found || std::abs(expected - found) <= 0x1p-16 * std::abs(expected)))
                ++wrong;
        }
        CHECK(wrong == 0);
    }
}

} // namespace

TEST_CASE("what kinds of keys add is a product of columns") {
    std::mt19937 random(20261125);
    const std::string kinds = "buffer g: i32[B, Q_LEN]\nbuffer k: i32[B, KV_LEN]\n";
    check(kinds + "buffer t: f32[5, 5, H]\nscore_mod = score + t[g[b, q_idx], k[b, kv_idx], h]", 5,
          random);
    check(kinds + "buffer t: bf16[H, 9, 8]\nscore_mod = score - t[h, g[b, q_idx], k[b, kv_idx]]", 8,
          random);
    check(kinds + "buffer t: f16[20, 5]\nbuffer a: f32[H]\nscore_mod = score + a[h] * "
                  "t[k[b, kv_idx], g[b, q_idx]] / 3",
          20, random);
    check(kinds + "buffer t: f32[33, H, 7]\nbuffer u: f32[Q_LEN, 33]\nscore_mod = score + "
                  "t[k[b, kv_idx], h, g[b, q_idx]] - 2 * u[q_idx, k[b, kv_idx]]",
          33, random);
    // Some kinds are outside.
    check(kinds + "buffer t: f32[4, 3]\nscore_mod = score + t[g[b, q_idx], k[b, kv_idx] - 1]", 3,
          random);
    check(kinds + "buffer t: f32[64, 3]\nscore_mod = score + t[kv_idx // 5 % 70, q_idx // 7 % 4]",
          64, random);
    for (const double special : {-std::numeric_limits<double>::infinity(), -1e30, 1e37})
        check(kinds + "buffer t: f32[5, 5]\nscore_mod = score + t[g[b, q_idx], k[b, kv_idx]]", 5,
              random, special);
}

TEST_CASE("programs whose keys enter otherwise have no kinds") {
    const std::string kinds = "buffer g: i32[Q_LEN]\nbuffer k: i32[KV_LEN]\nbuffer t: f32[6, 6]\n";
    for (const std::string_view score :
         {"score * 0.5 + t[g[q_idx], k[kv_idx]]", "score + tanh(t[g[q_idx], k[kv_idx]])",
          "score + t[g[q_idx], k[kv_idx]] * k[kv_idx]", "score + t[k[kv_idx], k[kv_idx] + q_idx]",
          "score + t[g[q_idx], k[kv_idx]] + t[g[q_idx], 5 - k[kv_idx]]",
          "9 * tanh((score + t[g[q_idx], k[kv_idx]]) / 9)",
          "score + t[g[q_idx], min(k[kv_idx], q_idx)]"}) {
        CAPTURE(score);
        auto mod = test::lower_text(kinds + "score_mod = " + std::string(score), 64, 64, false);
        REQUIRE(mod.has_value());
        CHECK(!passes::decompose_score_with_kinds(*mod).parts.kinds.found());
    }
}
