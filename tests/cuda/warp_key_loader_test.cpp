// Tiles of keys and values in pages that a warp loads for itself, run by threads of the host.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "common/arguments.h"
#include "cuda/emitted.h"
#include "draws.h"
#include "fresh_seed.h"
#include "front/compile_text.h"
#include "host_module.h"
#include "keys/in_pages.h"
#include "passes/pipeline.h"
#include "plan/plan.h"

namespace {

using namespace flexc;

using Element = std::uint16_t;
constexpr int kRows = 16;

// The tile as rows without padding. Returns whether all copies were of aligned pieces.
using Function = bool(const AttentionArguments*, int request, int h_kv, int tile, Element* keys,
                      Element* values);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm80/warp_key_loader.cuh"
using namespace sm80;
using Keys = Tile<mod::Element, 16, mod::kHeadDim>;
using Values = Tile<mod::Element, 16, mod::kHeadDimV>;
struct Stages {
    Keys keys(int) const { return {1024}; }
    Values values(int) const { return {1024 + Keys::kBytes}; }
};
struct Walk {
    int tile_;
    bool is_done() const { return false; }
    int tile() const { return tile_; }
    int step() const { return 0; }
};
template <typename T> void read(T tile, unsigned short* to) {
    for (int row = 0; row < T::kRows; ++row)
        std::memcpy(to + row * T::kColumns, memory_of_block + tile.at(row, 0), 2 * T::kColumns);
}
extern "C" bool run(const AttentionArguments* attention, int request, int h_kv, int tile,
                    unsigned short* keys, unsigned short* values) {
    std::memset(memory_of_block, 0xff, sizeof memory_of_block);
    unaligned_copies = 0;
    const SequenceLength length(*attention, request);
    run_warp([&](int lane) {
        LoaderOfWarp<Keys, Values> loader(*attention, length, h_kv, tile);
        loader.look_up(Walk{tile});
        loader.start(Stages{}, Walk{tile}, tile);
    });
    read(Stages{}.keys(0), keys);
    read(Stages{}.values(0), values);
    return unaligned_copies == 0;
}
)";

test::HostModule compiled(int head_dim, int head_dim_v) {
    front::Output output = front::compile_text({.source = dsl::Source("<test>", "score"),
                                                .query_layout = Layout::ragged,
                                                .key_layout = Layout::paged});
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    auto mod =
        passes::lower(std::move(*output.program), {.head_dim = head_dim, .head_dim_v = head_dim_v});
    REQUIRE(mod.has_value());
    plan::KernelRequest request{.arch = 80, .head_dim = head_dim, .head_dim_v = head_dim_v};
    request.sequences.scattered_in = "pages";
    return test::HostModule(std::string(kText),
                            test::emitted(*mod, plan::candidates(request).front(),
                                          {.head_dim = head_dim, .head_dim_v = head_dim_v}));
}

// A cache whose elements are known by where they are.
struct Cache {
    std::vector<Element> elements;
    TensorArgument argument{};

    Cache(int pages, int page_size, int heads, int columns, int gap, int step) {
        argument.stride_d = step;
        argument.stride_h = columns * step + gap;
        argument.stride_s = argument.stride_h * heads;
        argument.stride_b = argument.stride_s * page_size;
        elements.resize(static_cast<std::size_t>(argument.stride_b * pages + 8));
        for (std::size_t i = 0; i < elements.size(); ++i)
            elements[i] = static_cast<Element>(1 + i % 65521); // none is 0
        const auto at = reinterpret_cast<std::uintptr_t>(elements.data());
        argument.data = elements.data() + (16 - at % 16) % 16 / sizeof(Element);
    }
    Element at(long long page, int head, long long slot, int column) const {
        return static_cast<const Element*>(
            argument.data)[page * argument.stride_b + head * argument.stride_h +
                           slot * argument.stride_s + column * argument.stride_d];
    }
};

} // namespace

TEST_CASE("a warp's lanes look up rows of a tile in pages for all") {
    std::mt19937 random(test::fresh_seed());
    const auto below = test::draws_below(random);
    struct Dims {
        int keys, values;
    };
    for (const auto& [head_dim, head_dim_v] :
         {Dims{128, 128}, {64, 80}, {256, 40}, {36, 33}, {96, 8}}) {
        CAPTURE(head_dim);
        const test::HostModule module = compiled(head_dim, head_dim_v);
        for (int round = 0; round < 12; ++round) {
            const int page_size = round % 3 == 0 ? kRows : 1 + below(40), heads = 1 + below(3);
            std::vector<Sequence> sequences(3);
            std::vector<int> pages;
            for (Sequence& one : sequences) {
                one.kv_len = 1 + below(200);
                one.first_number = static_cast<long long>(pages.size());
                pages.resize(pages.size() +
                             static_cast<std::size_t>((one.kv_len + page_size - 1) / page_size));
            }
            std::iota(pages.begin(), pages.end(), 0);
            std::ranges::shuffle(pages, random);
            const auto cache = [&](int columns) {
                return Cache(static_cast<int>(pages.size()), page_size, heads, columns,
                             below(2) * (1 + below(8)), 1 + (below(4) == 0));
            };
            const Cache k = cache(head_dim), v = cache(head_dim_v);
            AttentionArguments attention{};
            attention.k = k.argument;
            attention.v = v.argument;
            attention.batch = static_cast<int>(sequences.size());
            attention.heads = attention.kv_heads = heads;
            attention.sequences = {.sequences = sequences.data(),
                                   .count = attention.batch,
                                   .keys = {pages.data(), page_size, KeysInPages::kLayout},
                                   .work = nullptr,
                                   .work_count = 0};

            const int request = below(3), head = below(heads);
            const Sequence& one = sequences[static_cast<std::size_t>(request)];
            const int tile = below((one.kv_len - 1) / kRows + 1);
            std::vector<Element> keys(static_cast<std::size_t>(kRows * head_dim)),
                values(static_cast<std::size_t>(kRows * head_dim_v));
            CHECK(module.function<Function>("run")(&attention, request, head, tile, keys.data(),
                                                   values.data()));
            const auto expected = [&](const Cache& of, int columns) {
                std::vector<Element> rows;
                for (int key = tile * kRows; key < (tile + 1) * kRows; ++key)
                    for (int column = 0; column < columns; ++column) {
                        rows.push_back(0);
                        if (key >= one.kv_len) continue;
                        const KeyRun run =
                            KeysInPages(attention.sequences.keys, one, request).run(key, 1);
                        rows.back() = of.at(run.entry, head, run.row, column);
                    }
                return rows;
            };
            CHECK(keys == expected(k, head_dim));
            CHECK(values == expected(v, head_dim_v));
        }
    }
}
