// Keys and values that threads of forward_sm90.cu copy, run by threads of the host: what comes to
// shared memory is what TMA would have brought.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/arguments.h"
#include "cuda/emitted.h"
#include "draws.h"
#include "fresh_seed.h"
#include "front/compile_text.h"
#include "host_module.h"
#include "keys/all.h"
#include "passes/pipeline.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/plan.h"

namespace {

using namespace flexc;

using Element = std::uint16_t;
constexpr std::size_t kMostElements = 1 << 16; // of a stage
constexpr Element kUntouched = 0xffff;

// Whether all copies were of 16 aligned bytes.
using Function = bool(const AttentionArguments*, int request, int h_kv, int tile, bool are_values,
                      Element* stage);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/forward_key_copies.cuh"
using namespace sm90;
constexpr unsigned kStage = 1024;
extern "C" bool run(const AttentionArguments* attention, int request, int h_kv, int tile,
                    bool are_values, unsigned short* stage) {
    std::memset(memory_of_block, 0xff, sizeof memory_of_block);
    unaligned_copies = 0;
    const SequenceLength length(*attention, request);
    const int left = length.keys() - tile * mod::kKeyTile;
    for (int warp = 0; warp < kKeyCopyWarps; ++warp)
        run_warp([&](int lane) {
            const KeyCopier copier{warp, lane};
            const KeyRows rows(*attention, are_values ? attention->v : attention->k, length, h_kv,
                               tile, copier);
            if (are_values)
                copy_key_rows<mod::kHeadDimV>(rows, copier, left, kStage);
            else
                copy_key_rows<mod::kHeadDim>(rows, copier, left, kStage);
        });
    std::memcpy(stage, memory_of_block + kStage, sizeof memory_of_block / 2);
    return unaligned_copies == 0;
}
)";

struct Kind {
    Layout layout;
    int head_dim, head_dim_v;
};

passes::Mod mod_of(const Kind& kind) {
    const Layout queries = kind.layout == Layout::dense ? Layout::dense : Layout::ragged;
    front::Output output = front::compile_text({.source = dsl::Source("<test>", "score"),
                                                .query_layout = queries,
                                                .key_layout = kind.layout});
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    auto mod = passes::lower(std::move(*output.program),
                             {.head_dim = kind.head_dim, .head_dim_v = kind.head_dim_v});
    REQUIRE(mod.has_value());
    return std::move(*mod);
}

// A tensor of rows that are known by where they are.
struct Rows {
    std::vector<Element> elements;
    TensorArgument argument{};

    // heads_first: of a page or batch entry, before rows.
    Rows(int entries, int rows, int heads, int columns, bool heads_first, int gap) {
        const long long row = columns + gap;
        argument.stride_d = 1;
        argument.stride_s = heads_first ? row : row * heads;
        argument.stride_h = heads_first ? row * rows : row;
        argument.stride_b = row * rows * heads;
        elements.resize(static_cast<std::size_t>(argument.stride_b * entries + 8));
        // No element of a tensor is 0 or kUntouched.
        for (std::size_t i = 0; i < elements.size(); ++i)
            elements[i] = static_cast<Element>(1 + i % 65521);
        const auto at = reinterpret_cast<std::uintptr_t>(elements.data());
        argument.data = elements.data() + (16 - at % 16) % 16 / sizeof(Element);
    }
    Element at(long long entry, int head, long long row, int column) const {
        return static_cast<const Element*>(
            argument.data)[entry * argument.stride_b + head * argument.stride_h +
                           row * argument.stride_s + column];
    }
};

class Checked {
  public:
    Checked(const Kind& kind, std::mt19937& random)
        : kind_(kind), random_(random), config_(config_of(kind)),
          module_(std::string(kText),
                  test::emitted(mod_of(kind), config_,
                                {.head_dim = kind.head_dim, .head_dim_v = kind.head_dim_v})) {}

    // A random tile of keys, and the same of values, of random requests.
    void check() {
        const bool is_paged = kind_.layout == Layout::paged;
        const int batch = 1 + below(4), heads = 1 + below(3), page_size = 1 + below(40);
        std::vector<Sequence> sequences(static_cast<std::size_t>(batch));
        std::vector<int> pages;
        int longest = 0, rows = 0;
        for (Sequence& one : sequences) {
            one.kv_len = 1 + below(500);
            one.kv_rows = one.kv_len + below(3);
            one.kv_row = rows;
            one.first_number = static_cast<long long>(pages.size());
            rows += one.kv_rows;
            longest = std::max(longest, one.kv_len);
            pages.resize(pages.size() +
                         static_cast<std::size_t>((one.kv_len + page_size - 1) / page_size));
        }
        std::iota(pages.begin(), pages.end(), 0);
        std::ranges::shuffle(pages, random_);
        const int entries = is_paged                        ? static_cast<int>(pages.size())
                            : kind_.layout == Layout::dense ? batch
                                                            : 1;
        const int rows_of_entry = is_paged                        ? page_size
                                  : kind_.layout == Layout::dense ? longest
                                                                  : rows;
        const auto rows_of = [&](int columns) {
            return Rows(entries, rows_of_entry, heads, columns, below(2) == 0, 8 * below(3));
        };
        const Rows k = rows_of(kind_.head_dim), v = rows_of(kind_.head_dim_v);
        AttentionArguments attention{};
        attention.k = k.argument;
        attention.v = v.argument;
        attention.batch = batch;
        attention.kv_heads = heads;
        attention.kv_len = longest;
        attention.sequences.sequences = sequences.data();
        attention.sequences.count = batch;
        attention.sequences.keys = {pages.data(), page_size, 0};

        const int request = below(batch), head = below(heads);
        const Sequence& one = sequences[static_cast<std::size_t>(request)];
        const int keys = kind_.layout == Layout::dense ? longest : one.kv_len;
        const int tile = below((keys - 1) / config_.block.key_tile + 1);
        const auto element = [&](const Rows& of, int row, int column) -> Element {
            const int key = tile * config_.block.key_tile + row;
            if (key >= keys) return 0;
            if (kind_.layout == Layout::dense) return of.at(request, head, key, column);
            const KeyTable& table = attention.sequences.keys;
            const KeyRun run = is_paged ? KeysInPages(table, one, request).run(key, 1)
                                        : KeysInOrder(table, one, request).run(key, 1);
            return of.at(is_paged ? run.entry : 0, head, run.row, column);
        };
        for (const bool are_values : {false, true}) {
            const Rows& of = are_values ? v : k;
            const int columns = are_values ? kind_.head_dim_v : kind_.head_dim;
            std::vector<Element> stage(kMostElements), expected(kMostElements, kUntouched);
            CHECK(module_.function<Function>("run")(&attention, request, head, tile, are_values,
                                                    stage.data()));
            for (int row = 0; row < config_.block.key_tile; ++row)
                for (int column = 0; column < (columns + 15) / 16 * 16; ++column)
                    expected[place_of(row, column)] =
                        column < columns ? element(of, row, column) : Element{0};
            CAPTURE(are_values);
            CHECK(std::ranges::mismatch(stage, expected).in1 == stage.end());
        }
    }

  private:
    static plan::KernelConfig config_of(const Kind& kind) {
        plan::KernelRequest request{
            .arch = 90, .head_dim = kind.head_dim, .head_dim_v = kind.head_dim_v};
        request.sequences.is_ragged = kind.layout == Layout::ragged;
        if (kind.layout == Layout::paged) request.sequences.scattered_in = "pages";
        const plan::KernelConfig config = plan::candidates(request).front();
        REQUIRE(plan::sm90::forward_of(config)->sizes.copies_keys);
        return config;
    }
    int below(int end) { return test::draws_below(random_)(end); }

    // In a stage as TMA swizzles 128 bytes.
    std::size_t place_of(int row, int column) const {
        const int byte = row * 128 + column % 64 * 2;
        return static_cast<std::size_t>(
            (column / 64 * config_.block.key_tile * 128 + (byte ^ (row % 8 * 16))) / 2);
    }

    Kind kind_;
    std::mt19937& random_;
    plan::KernelConfig config_;
    test::HostModule module_;
};

} // namespace

TEST_CASE("keys and values that threads copy lie as TMA brings them") {
    std::mt19937 random(test::fresh_seed());
    for (const Kind& kind : {Kind{Layout::paged, 64, 64},
                             {Layout::paged, 128, 72},
                             {Layout::paged, 40, 112},
                             {Layout::dense, 104, 104},
                             {Layout::dense, 64, 120},
                             {Layout::ragged, 120, 128}}) {
        CAPTURE(static_cast<int>(kind.layout));
        CAPTURE(kind.head_dim);
        Checked checked(kind, random);
        for (int round = 0; round < 12; ++round)
            checked.check();
    }
}
