// What warps of Hopper's kernels find that a mask shows of a tile, run on the host by a thread for
// each lane, against the mask at each element.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/arguments.h"
#include "cuda/emitted.h"
#include "draws.h"
#include "fresh_seed.h"
#include "host_arguments.h"
#include "host_module.h"
#include "masks.h"
#include "plan/plan.h"

namespace {

using namespace flexc;

constexpr int kLines = 16; // of a warp

// bits: [tiles][lanes][lines of a lane], of the tiles from first_tile on.
using Function = void(const std::uint64_t* words, const AttentionArguments*, int head, int line,
                      int first_tile, int tiles, unsigned* bits);

constexpr std::string_view kForward = R"(
#include "mod.cuh"
#include "sm90/visible_keys.cuh"
extern "C" void run(const unsigned long long* words, const AttentionArguments* attention, int head,
                    int line, int first_tile, int tiles, unsigned* bits) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    run_warp([&](int lane) {
        mod::Row rows[2];
        for (int i = 0; i < 2; ++i)
            rows[i] = mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv,
                                  min(line + lane / 4 + 8 * i, attention->q_len - 1) +
                                      static_cast<int>(attention->q_offset));
        const SequenceLength length(*attention, place.b);
        const sm90::VisibleKeys keys(length, arguments, place, rows, line, lane);
        for (int tile = 0; tile < tiles; ++tile) {
            unsigned visible[2];
            keys.find(visible, (first_tile + tile) * mod::kKeyTile, rows);
            for (int i = 0; i < 2; ++i) bits[(tile * 32 + lane) * 2 + i] = visible[i];
        }
    });
}
)";

constexpr std::string_view kBackward = R"(
#include "mod.cuh"
#include "sm90/visible_queries.cuh"
unsigned char shared_memory[1];
extern "C" void run(const unsigned long long* words, const AttentionArguments* attention, int head,
                    int line, int first_tile, int tiles, unsigned* bits) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    run_warp([&](int lane) {
        const sm90::TileLength length(*attention, place.b);
        const sm90::KeyColumns columns(length, arguments, place, line, lane);
        const sm90::VisibleQueries queries(length, arguments, place, columns, line, lane);
        for (int tile = 0; tile < tiles; ++tile) {
            const int first = (first_tile + tile) * mod::kQueryTile;
            mod::Row rows[mod::kQueryTile];
            for (int i = 0; i < mod::kQueryTile; ++i)
                rows[i] = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                      place.h_kv, min(first + i, attention->q_len - 1) +
                                                      static_cast<int>(attention->q_offset));
            unsigned visible[2];
            queries.find(visible, first, columns, rows);
            for (int i = 0; i < 2; ++i) bits[(tile * 32 + lane) * 2 + i] = visible[i];
        }
    });
}
)";

// Which of a tile's positions bit `bit` of a lane is of, and which of the warp's lines line i.
int position_of(int lane, int bit) { return lane % 4 * 2 + bit / 2 * 8 + bit % 2; }
int line_of(int lane, int i) { return lane / 4 + 8 * i; }

void check(const test::MaskCase& one, bool backward, std::mt19937& random) {
    CAPTURE(one.text);
    CAPTURE(backward);
    const auto below = test::draws_below(random);
    AttentionArguments attention{};
    attention.batch = test::MaskInstance::kBatch;
    attention.heads = attention.kv_heads = test::MaskInstance::kHeads;
    attention.q_len = 100 + below(200);
    attention.kv_len = 100 + below(300);
    attention.q_offset = below(2) * below(40);
    attention.kv_offset = below(2) * below(40);
    test::MaskInstance mask(
        one, {attention.q_len + attention.q_offset, attention.kv_len + attention.kv_offset}, false,
        backward);
    const int head_dim = below(2) == 0 ? 64 : 128;
    plan::KernelConfig config =
        plan::candidates(
            {.kind = backward ? plan::KernelKind::backward_fused : plan::KernelKind::forward,
             .arch = 90,
             .dtype = DType::bf16,
             .head_dim = head_dim,
             .head_dim_v = head_dim,
             .mask = {.has_block_mask = true}})
            .front();
    config.has_block_mask = true;
    const test::HostModule module(std::string(backward ? kBackward : kForward),
                                  test::emitted(mask.mod(), config, {.dtype = DType::bf16}));

    const int head = below(attention.batch * attention.heads);
    const ir::Environment& environment = mask.move(head / attention.heads, head % attention.heads);
    const test::HostArguments arguments(mask.mod(), environment);
    const int lines = backward ? attention.kv_len : attention.q_len;
    const int others = backward ? attention.q_len : attention.kv_len;
    const int tile_size = backward ? config.block.query_tile : config.block.key_tile;
    const int tiles = (others + tile_size - 1) / tile_size;
    const int line = below((lines + kLines - 1) / kLines) * kLines;
    std::vector<unsigned> bits(static_cast<std::size_t>(tiles * 32 * 2));
    module.function<Function>("run")(arguments.words(), &attention, head, line, 0, tiles,
                                     bits.data());
    int wrong = 0;
    for (int tile = 0; tile < tiles; ++tile)
        for (int lane = 0; lane < 32; ++lane)
            for (int i = 0; i < 2; ++i)
                for (int bit = 0; bit < tile_size / 4; ++bit) {
                    const int own = line + line_of(lane, i);
                    const int other = tile * tile_size + position_of(lane, bit);
                    if (own >= lines) continue;
                    const int q = backward ? other : own, kv = backward ? own : other;
                    const bool expected = other < others && mask.visible(q + attention.q_offset,
                                                                         kv + attention.kv_offset);
                    const unsigned word =
                        bits[static_cast<std::size_t>((tile * 32 + lane) * 2 + i)];
                    wrong += ((word >> bit & 1) != 0) != expected;
                }
    CHECK(wrong == 0);
}

} // namespace

TEST_CASE("warps find what a mask shows of a tile") {
    std::vector<test::MaskCase> masks = test::mask_cases();
    // Parts that are the same for all tiles, and grids that no tile fits.
    for (const char* text :
         {"mask_mod = abs(q_idx // 32 - kv_idx // 32) <= 2 and abs(q_idx % 32 - kv_idx % 32) <= 3",
          "mask_mod = abs(q_idx // 64 - kv_idx // 64) <= 1 and abs(q_idx % 64 - kv_idx % 64) <= 9",
          "mask_mod = q_idx % 16 >= kv_idx % 16 and q_idx >= kv_idx and q_idx - kv_idx < 90",
          "mask_mod = abs(q_idx // 20 - kv_idx // 20) <= 2 and abs(q_idx % 20 - kv_idx % 20) <= 3",
          "mask_mod = (q_idx % 8 == kv_idx % 8 or q_idx // 8 == kv_idx // 8) and q_idx % 3 != 1 "
          "and (q_idx - kv_idx) % 2 == 0 and kv_idx % 7 != 2 and (q_idx + kv_idx) % 5 != 0",
          test::kMaskOfManyValues})
        masks.push_back({text, analysis::MaskTier::tile_tests});
    std::mt19937 random(test::fresh_seed());
    // A compile each: the last ones, and some of those that people use.
    const std::size_t all = masks.size() - 6;
    std::shuffle(masks.begin(), masks.begin() + static_cast<std::ptrdiff_t>(all), random);
    for (std::size_t i = all - 6; i < masks.size(); ++i)
        for (const bool backward : {false, true})
            check(masks[i], backward, random);
}
