// Block masks of ragged and paged layouts as block_mask.cu makes them, run on the host, and which
// tiles kernels visit by them: those in which something is visible, and no others.
#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "common/arguments.h"
#include "cuda/emit_tiles.h"
#include "cuda/emitted.h"
#include "draws.h"
#include "fresh_seed.h"
#include "front/compile_text.h"
#include "host_module.h"
#include "keys/all.h"
#include "passes/pipeline.h"
#include "plan/plan.h"
#include "runtime/alignment.h"
#include "runtime/block_mask_memory.h"

namespace {

using namespace flexc;

constexpr std::string_view kBuilder = R"(
#include "mod.cuh"
#undef __shared__
#define __shared__ static
#include "block_mask.cu"
extern "C" void build(const AttentionArguments* attention, const unsigned long long* words,
                      const BlockMaskArguments* all, const int* blocks) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    run_block(kThreads, [&] {
        const auto launch = [&](int count, auto kernel) {
            for (int block = 0; block < count; ++block) {
                blockIdx.x = block;
                kernel(*attention, arguments, *all);
                __syncthreads();
            }
        };
        launch(blocks[0], flexc_block_mask_facts);
        launch(blocks[1], flexc_block_mask_tiles);
        launch(blocks[2], flexc_block_mask_order);
    });
}
)";

// What the block-th block of a forward, or of a backward over keys, has: over all heads of queries,
// its tile, and the tiles that it visits, twice their index and whether they are full.
constexpr std::string_view kVisitor = R"(
#include "mod.cuh"
#include "sm80/few_tiles.cuh"
#include "sm80/tile_order.cuh"
extern "C" int visit_queries(const AttentionArguments* attention, int block, int* own, int* tiles) {
    const sm80::BlockTile found = sm80::query_tile_of(*attention, block);
    const SequenceLength length(*attention, found.head / attention->heads);
    if (!sm80::has_queries(length, found.tile)) return -1;
    if (has_few_rows(length, attention->heads / attention->kv_heads)) return -1;
    own[0] = found.head, own[1] = found.tile;
    int count = 0;
    for (TileWalk walk(attention->block_mask,
                       row_of_queries(attention->block_mask, length,
                                      found.head % attention->heads, found.tile), {0, 0});
         !walk.is_done(); walk.advance())
        tiles[count++] = 2 * walk.tile() + walk.is_full();
    return count;
}
// The tiles of a warp of requests with few queries.
extern "C" int visit_few(const AttentionArguments* attention, int b, int h_kv, int part, int parts,
                         int warp, int* tiles) {
    int count = 0;
    run_warp([&](int lane) {
        const SequenceLength length(*attention, b);
        const int group = attention->heads / attention->kv_heads;
        int own = 0;
        for (sm80::TilesOfWarp<4> walk(*attention,
                                       {length, h_kv * group, group, {b, part, parts}, {}, warp});
             !walk.is_done(); walk.advance(), ++own)
            if (lane == 0) tiles[own] = 2 * walk.tile() + walk.is_full();
        if (lane == 0) count = own;
    });
    return count;
}
extern "C" int visit_keys(const AttentionArguments* attention, int b, int h, int tile, int* tiles) {
    const SequenceLength length(*attention, b);
    int count = 0;
    for (TileWalk walk(attention->block_mask,
                       row_of_keys(attention->block_mask, length, h, tile), {0, 0});
         !walk.is_done(); walk.advance())
        tiles[count++] = 2 * walk.tile() + walk.is_full();
    return count;
}
)";

struct At {
    int h, q, kv;
    long long q_row, kv_row;
    int kv_len;
};
using Table = std::vector<std::int32_t>;

struct MaskOfRequests {
    const char* text;
    bool by_head;
    bool (*visible)(const At&, const Table&); // of t, the one buffer
};
const std::vector<MaskOfRequests>& masks() {
    static const std::vector<MaskOfRequests> kMasks = {
        {"buffer t: i32[N]\nmask_mod = t[q_row] == t[kv_row]", false,
         [](const At& at, const Table& t) {
             return t[static_cast<std::size_t>(at.q_row)] == t[static_cast<std::size_t>(at.kv_row)];
         }},
        // A prefix of each head, or a window.
        {"buffer t: i32[N]\nmask_mod = kv_idx < 3 * t[h] or 0 <= q_idx - kv_idx < 5 and KV_LEN > 9",
         true,
         [](const At& at, const Table& t) {
             return at.kv < 3 * t[static_cast<std::size_t>(at.h)] ||
                    (at.q >= at.kv && at.q - at.kv < 5 && at.kv_len > 9);
         }},
        // Intervals decide nothing.
        {"buffer t: i32[N]\nmask_mod = t[(q_idx // 16 * 7 + kv_idx // 8) % 64] == 1", false,
         [](const At& at, const Table& t) {
             const int place =
                 (((at.q >= 0 ? at.q / 16 : -1 - (-1 - at.q) / 16) * 7 + at.kv / 8) % 64 + 64) % 64;
             return t[static_cast<std::size_t>(place)] == 1;
         }},
    };
    return kMasks;
}

constexpr int kQueryTile = 8, kKeyTile = 8;

struct Layouts {
    Layout queries, keys;
};
constexpr Layouts kLayouts[] = {{Layout::ragged, Layout::ragged},
                                {Layout::ragged, Layout::paged},
                                {Layout::dense, Layout::paged},
                                {Layout::dense, Layout::ragged},
                                {Layout::ragged, Layout::dense}};

passes::Mod mod_of(const char* text, const Layouts& layouts) {
    front::Output output = front::compile_text({.source = dsl::Source("<test>", text),
                                                .query_layout = layouts.queries,
                                                .key_layout = layouts.keys});
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    auto mod = passes::lower(std::move(*output.program), {.backward = false});
    REQUIRE(mod.has_value());
    return std::move(*mod);
}

// Requests, with all that a kernel is told of them.
struct Requests {
    std::vector<Sequence> sequences;
    std::vector<int> pages;
    AttentionArguments attention{};
    int group = 1;

    long long kv_row(int b, int kv) const {
        const KeyTable& table = attention.sequences.keys;
        return with_key_layout(table.layout, [&](auto layout) {
            using Keys = typename decltype(layout)::Keys;
            return Keys(table, sequences[static_cast<std::size_t>(b)], b).row(kv);
        });
    }
};
Requests random_requests(std::mt19937& random, const Layouts& layouts) {
    const auto below = test::draws_below(random);
    constexpr int kMostRows = 60, kPageSize = 4;
    Requests requests;
    requests.group = 2 << below(2);
    AttentionArguments& attention = requests.attention;
    attention.batch = 1 + below(4);
    attention.kv_heads = 1 + below(2);
    attention.heads = attention.kv_heads * requests.group;
    attention.q_len = kMostRows;
    attention.kv_len = kMostRows;
    attention.sequences.keys.size = kPageSize;
    attention.sequences.keys.layout =
        layouts.keys == Layout::paged ? KeysInPages::kLayout : KeysInOrder::kLayout;
    long long q_row = 0, kv_row = 0;
    for (int b = 0; b < attention.batch; ++b) {
        const auto rows_of = [&](Layout layout) {
            return layout == Layout::dense || below(4) > 0 ? 20 + below(kMostRows - 19) : below(9);
        };
        Sequence one{.first_number = static_cast<long long>(requests.pages.size())};
        one.q_len = rows_of(layouts.queries);
        one.kv_len = rows_of(layouts.keys);
        one.q_rows = layouts.queries == Layout::dense ? kMostRows : one.q_len + below(12);
        one.kv_rows = layouts.keys == Layout::dense    ? kMostRows
                      : layouts.keys == Layout::ragged ? one.kv_len + below(12)
                                                       : one.kv_len;
        one.q_start = below(2) * (one.kv_len - one.q_len);
        if (layouts.queries == Layout::ragged) one.q_row = q_row;
        if (layouts.keys == Layout::ragged) one.kv_row = kv_row;
        q_row += one.q_rows;
        kv_row += one.kv_rows;
        for (int i = 0; layouts.keys == Layout::paged && i < one.kv_len; i += kPageSize)
            requests.pages.push_back(below(60));
        requests.sequences.push_back(one);
    }
    attention.q_rows = q_row + below(2) * below(30);
    attention.kv_rows = kv_row + below(2) * below(30);
    attention.sequences.sequences = requests.sequences.data();
    attention.sequences.keys.numbers = requests.pages.data();
    attention.sequences.count = attention.batch;
    return requests;
}

std::vector<std::uint64_t> words_of(const passes::Mod& mod, const Requests& requests,
                                    const Table& table) {
    using Kind = passes::ArgumentSlot::Kind;
    const SequenceArguments& sequences = requests.attention.sequences;
    std::vector<std::uint64_t> words;
    for (const passes::ArgumentSlot& slot : passes::argument_slots(mod))
        switch (slot.kind) {
        case Kind::buffer_data:
            words.push_back(reinterpret_cast<std::uint64_t>(table.data()));
            break;
        case Kind::buffer_extent:
        case Kind::size: words.push_back(table.size()); break;
        case Kind::buffer_stride: words.push_back(1); break;
        case Kind::sequences:
            words.push_back(reinterpret_cast<std::uint64_t>(sequences.sequences));
            break;
        case Kind::key_numbers:
            words.push_back(reinterpret_cast<std::uint64_t>(sequences.keys.numbers));
            break;
        case Kind::key_table_size:
            words.push_back(static_cast<std::uint64_t>(sequences.keys.size));
            break;
        default: FAIL("a word that this program has no use for");
        }
    return words;
}

int parts(int whole, int part) { return (whole + part - 1) / part; }

// Twice the index and whether it is full, of each tile with something visible.
template <typename Visible>
std::vector<int> expected_tiles(int own_first, int own_end, int length, int tile, Visible visible) {
    std::vector<int> tiles;
    for (int first = 0; first < length; first += tile) {
        bool any = false, all = true;
        for (int own = own_first; own < own_end; ++own)
            for (int other = first; other < std::min(first + tile, length); ++other) {
                const bool seen = visible(own, other);
                any |= seen;
                all &= seen;
            }
        if (any) tiles.push_back(2 * (first / tile) + static_cast<int>(all));
    }
    return tiles;
}

struct Counts {
    int visited = 0, all = 0;
};

class Built {
  public:
    Built(const test::HostModule& builder, const plan::BlockMaskFacts& facts,
          const plan::MaskTiling& tiling, Requests& requests,
          const std::vector<std::uint64_t>& words) {
        const auto place = [&](std::byte* memory) {
            support::Arena arena(memory, runtime::kAlignment);
            arguments_.masks[0] =
                runtime::place_block_mask(facts, tiling, requests.attention, arena);
            return arena.used();
        };
        // What is not written is noticed.
        memory_.assign(place(nullptr) / sizeof(std::uint64_t) + 1, 0x7f7f7f7f7f7f7f7fu);
        place(reinterpret_cast<std::byte*>(memory_.data()));
        const runtime::MaskCount count = runtime::masks_of(facts, requests.attention);
        arguments_.masks_of_heads = count.heads;
        arguments_.masks_of_batches = count.batches;
        const BuiltBlockMask& one = arguments_.masks[0];
        const int masks = count.heads * count.batches, rows = one.mask.row_count;
        const int blocks[] = {parts(masks * (one.query_tiles + one.key_tiles), 8),
                              masks * rows * parts(one.mask.word_count, 8),
                              masks * parts(rows, 256)};
        auto* const build = builder.function<void(const AttentionArguments*, const std::uint64_t*,
                                                  const BlockMaskArguments*, const int*)>("build");
        build(&requests.attention, words.data(), &arguments_, blocks);
        requests.attention.block_mask = one.mask;
    }

  private:
    BlockMaskArguments arguments_{};
    std::vector<std::uint64_t> memory_;
};

// Blocks of the forward: each tile of a request with many queries once, the longest first.
Counts check_queries(const test::HostModule& visitor, const Requests& requests,
                     const MaskOfRequests& mask, const Table& table) {
    const AttentionArguments& attention = requests.attention;
    const auto visible_of = [&](int b, int h) {
        return [&requests, &mask, &table, b, h](int q, int kv) {
            const Sequence& one = requests.sequences[static_cast<std::size_t>(b)];
            return mask.visible(
                {h, q + one.q_start, kv, one.q_row + q, requests.kv_row(b, kv), one.kv_len}, table);
        };
    };
    auto* const visit =
        visitor.function<int(const AttentionArguments*, int, int*, int*)>("visit_queries");
    Counts counts;
    std::map<std::pair<int, int>, int> found; // head and tile
    std::vector<int> longest(static_cast<std::size_t>(attention.heads), 1 << 20);
    for (int block = 0; block < attention.heads * attention.block_mask.row_count; ++block) {
        int own[2] = {}, tiles[64] = {};
        const int count = visit(&attention, block, own, tiles);
        if (count < 0) continue;
        ++found[{own[0], own[1]}];
        const int b = own[0] / attention.heads, h = own[0] % attention.heads;
        const Sequence& one = requests.sequences[static_cast<std::size_t>(b)];
        const int first = own[1] * kQueryTile;
        const std::vector<int> expected = expected_tiles(
            first, std::min(first + kQueryTile, one.q_len), one.kv_len, kKeyTile, visible_of(b, h));
        CHECK(std::vector<int>(tiles, tiles + count) == expected);
        int& before = longest[static_cast<std::size_t>(h)];
        CHECK(count <= before);
        before = count;
        counts.visited += count;
        counts.all += parts(one.kv_len, kKeyTile);
    }
    std::map<std::pair<int, int>, int> expected;
    for (int b = 0; b < attention.batch; ++b) {
        const Sequence& one = requests.sequences[static_cast<std::size_t>(b)];
        if (has_few_rows(one, requests.group)) continue;
        for (int h = 0; h < attention.heads; ++h)
            for (int first = 0; first < one.q_rows; first += kQueryTile)
                ++expected[{b * attention.heads + h, first / kQueryTile}];
    }
    CHECK(found == expected);
    return counts;
}

// Requests with few queries: every part of the keys and every warp has tiles of its own.
Counts check_few(const test::HostModule& visitor, const Requests& requests,
                 const MaskOfRequests& mask, const Table& table) {
    const AttentionArguments& attention = requests.attention;
    auto* const visit =
        visitor.function<int(const AttentionArguments*, int, int, int, int, int, int*)>(
            "visit_few");
    constexpr int kWarps = 4;
    Counts counts;
    for (int b = 0; b < attention.batch; ++b) {
        const Sequence& one = requests.sequences[static_cast<std::size_t>(b)];
        if (one.q_len == 0 || !has_few_rows(one, requests.group)) continue;
        for (int h_kv = 0; h_kv < attention.kv_heads; ++h_kv) {
            // Rows: queries of all heads that share the keys.
            const auto visible = [&](int row, int kv) {
                const int q = row / requests.group,
                          h = h_kv * requests.group + row % requests.group;
                return mask.visible(
                    {h, q + one.q_start, kv, one.q_row + q, requests.kv_row(b, kv), one.kv_len},
                    table);
            };
            const std::vector<int> expected =
                expected_tiles(0, one.q_len * requests.group, one.kv_len, kKeyTile, visible);
            for (const int parts_of_keys : {1, 3}) {
                std::vector<int> found;
                for (int part = 0; part < parts_of_keys; ++part) {
                    int fewest = 64, most = 0;
                    for (int warp = 0; warp < kWarps; ++warp) {
                        int tiles[64] = {};
                        const int count =
                            visit(&attention, b, h_kv, part, parts_of_keys, warp, tiles);
                        found.insert(found.end(), tiles, tiles + count);
                        fewest = std::min(fewest, count);
                        most = std::max(most, count);
                    }
                    CHECK(most - fewest <= 1);
                }
                std::sort(found.begin(), found.end());
                CHECK(found == expected);
            }
            counts.visited += static_cast<int>(expected.size());
            counts.all += parts(one.kv_len, kKeyTile);
        }
    }
    return counts;
}

Counts check_keys(const test::HostModule& visitor, const Requests& requests,
                  const MaskOfRequests& mask, const Table& table) {
    const AttentionArguments& attention = requests.attention;
    auto* const visit =
        visitor.function<int(const AttentionArguments*, int, int, int, int*)>("visit_keys");
    Counts counts;
    for (int b = 0; b < attention.batch; ++b)
        for (int h = 0; h < attention.heads; ++h) {
            const Sequence& one = requests.sequences[static_cast<std::size_t>(b)];
            for (int first = 0; first < one.kv_rows; first += kKeyTile) {
                int tiles[64] = {};
                const int count = visit(&attention, b, h, first / kKeyTile, tiles);
                const auto visible = [&](int kv, int q) {
                    return mask.visible(
                        {h, q + one.q_start, kv, one.q_row + q, requests.kv_row(b, kv), one.kv_len},
                        table);
                };
                CHECK(std::vector<int>(tiles, tiles + count) ==
                      expected_tiles(first, std::min(first + kKeyTile, one.kv_len), one.q_len,
                                     kQueryTile, visible));
                counts.visited += count;
                counts.all += parts(one.q_len, kQueryTile);
            }
        }
    return counts;
}

} // namespace

TEST_CASE("block masks of requests name the tiles in which something is visible") {
    std::mt19937 random(test::fresh_seed());
    Counts queries, few, keys;
    for (std::size_t i = 0; i < std::size(kLayouts); ++i)
        for (const MaskOfRequests& mask : masks()) {
            const Layouts& layouts = kLayouts[i];
            CAPTURE(i);
            CAPTURE(std::string(mask.text));
            const passes::Mod mod = mod_of(mask.text, layouts);
            plan::KernelConfig of_builder, forward;
            of_builder.kind = plan::KernelKind::block_mask;
            forward.block.query_tile = kQueryTile;
            forward.block.key_tile = kKeyTile;
            forward.has_block_mask = true;
            const test::HostModule builder(std::string(kBuilder), test::emitted(mod, of_builder));
            const test::HostModule visitor(std::string(kVisitor), test::emitted(mod, forward));
            const cuda::TileFacts counts = cuda::tile_facts(mod);
            const plan::BlockMaskFacts facts{.query_facts = counts.of_queries,
                                             .key_facts = counts.of_keys,
                                             .by_head = mask.by_head,
                                             .queries = layouts.queries,
                                             .keys = layouts.keys};
            Requests requests = random_requests(random, layouts);
            Table table;
            for (int row = 0; row < 400; ++row)
                table.push_back(static_cast<std::int32_t>(row / 13 % 7));
            const std::vector<std::uint64_t> words = words_of(mod, requests, table);
            const auto add = [](Counts& to, const Counts& more) {
                to.visited += more.visited;
                to.all += more.all;
            };
            plan::KernelConfig of_few = forward, backward = forward;
            of_few.sequences.has_few_queries = true;
            backward.kind = plan::KernelKind::backward_fused;
            const auto tiling = [&](const plan::KernelConfig& kernel) {
                return plan::mask_tiling(kernel, true);
            };
            {
                const Built built(builder, facts, tiling(forward), requests, words);
                add(queries, check_queries(visitor, requests, mask, table));
            }
            {
                const Built built(builder, facts, tiling(of_few), requests, words);
                add(few, check_few(visitor, requests, mask, table));
            }
            const Built built(builder, facts, tiling(backward), requests, words);
            add(keys, check_keys(visitor, requests, mask, table));
        }
    // Most of what these masks hide is in tiles of its own.
    CHECK(queries.visited > 0);
    CHECK(2 * queries.visited < queries.all);
    CHECK(few.visited > 0);
    CHECK(few.visited < few.all);
    CHECK(keys.visited > 0);
    CHECK(2 * keys.visited < keys.all);
}
