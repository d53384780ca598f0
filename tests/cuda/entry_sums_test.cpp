// Sums of dS over entries of tables, as the threads of Hopper's backward that compute it add their
// elements: a block of them run by threads of the host for all queries of a tile of keys, against
// sums element by element.
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "bound_extents.h"
#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "d_scores.h"
#include "draws.h"
#include "fresh_seed.h"
#include "host_arguments.h"
#include "host_module.h"
#include "passes/gradient_sum.h"
#include "passes/table_gradient.h"
#include "plan/plan.h"
#include "random_data.h"
#include "sm90/arguments.h"
#include "table_programs.h"

namespace {

using namespace flexc;

// d_scores: [tiles of queries][queries of a tile][keys of a tile], bits of bf16. Whether all memory
// of sums is zero afterwards.
using Function = bool(const std::uint64_t* words, const ::sm90::KernelArguments*, int head,
                      int first_key, int tiles, const unsigned short* d_scores);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/gradients/entries.cuh"
using namespace sm90;
unsigned char shared_memory[1];
struct Elements {
    const KernelArguments& attention;
    const mod::Arguments& arguments;
    const HeadPlace& place;
    int warp_key;

    template <typename Visit> void visit(int query, int key, Visit visit) const {
        const int q = std::min(query, attention.q_len - 1) + attention.q_offset;
        const int kv = std::min(key, attention.kv_len - 1) + attention.kv_offset;
        const mod::Row row = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                         place.h_kv, q);
        const mod::Column column = mod::at_column(arguments, place.launch, place.head, place.b,
                                                  place.h, place.h_kv, kv);
        visit(mod::At{arguments, place.launch, place.head, row, column, place.b, place.h,
                      place.h_kv, q, kv});
    }
    mod::At at_key(const mod::Row& row, int) const {
        return {arguments, place.launch, place.head, row, mod::Column{}, place.b, place.h,
                place.h_kv, 0, 0};
    }
};
extern "C" bool run(const unsigned long long* words, const KernelArguments* attention, int head,
                    int first_key, int tiles, const unsigned short* d_scores) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    const Shared shared{0};
    run_block(128 * kConsumers, [&] {
        const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
        threadIdx.x += 128;
        const Elements elements{*attention, arguments, place, first_key};
        Entries sums{};
        Entries::clear(shared);
        for (int tile = 0; tile < tiles; ++tile) {
            Fragments fragments;
            float even[2];
            for (int j = 0; j < kQueries; ++j)
                for (int k = 0; k < 2; ++k) {
                    const int row = lane % 4 * 2 + query_of(j);
                    const int column = thread / 32 * 16 + lane / 4 + 8 * k;
                    const float d_score = flexc_to_float(flexc_bf16{
                        d_scores[(tile * mod::kQueryTile + row) * mod::kKeyTile + column]});
                    elements.visit(tile * mod::kQueryTile + row, first_key + column,
                                   [&](const mod::At& at) { sums.keep(at, d_score, k, j); });
                    const int i = accumulator(k, j);
                    if (j % 2 == 0)
                        even[k] = d_score;
                    else
                        fragments[i / 8][i / 2 % 4] = pack(mod::Element{}, even[k], d_score);
                }
            sums.publish(shared, tile);
            __syncthreads();
            sums.add(shared, tile, fragments, elements);
        }
        sums.flush(shared, elements);
    });
    // But for what elements without an entry add to.
    const mod::At at = Elements{*attention, arguments, place, first_key}.at_key(mod::Row{}, 0);
    const EntryNumbers numbers(at);
    const int shift = numbers.copy_shift(), first = EntryNumbers::kFirst;
    const int end = numbers.template first<mod::TableGradients::kCount>();
    bool is_clear = true;
    for (int i = first << shift; i < end << shift; ++i)
        is_clear = is_clear && load_shared_word(kLayout.tables + 4 * i) == 0;
    return is_clear && (first == 1 || end == mod::TableGradients::kEntries);
}
)";

// A program, and the extents of the sizes that it names.
struct SizedProgram {
    test::TableProgram tables;
    std::vector<std::int64_t> sizes = {};
};

// How many entries got a gradient.
int check(const SizedProgram& sized, int head_dim, std::mt19937& random) {
    const test::TableProgram& tables = sized.tables;
    CAPTURE(tables.text);
    CAPTURE(head_dim);
    const auto below = test::draws_below(random);
    auto mod = test::lower_text(tables.text, head_dim, head_dim, true);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    const passes::EntryCount entries = passes::entries_of_elements(*mod);
    CHECK(entries.is_bound == (entries.exist() && !sized.sizes.empty()));
    if (!entries.exist()) return 0;
    const plan::KernelConfig config = plan::candidates(
        {.kind = plan::KernelKind::backward_fused,
         .arch = 90,
         .dtype = DType::bf16,
         .head_dim = head_dim,
         .head_dim_v = head_dim,
         .has_score_mod = true,
         .gradients = {.are_alone = true, .by_table = true, .entries_of_elements = entries}})[0];
    REQUIRE(config.family == "sm90");
    REQUIRE(config.storage.entries_are_bound == entries.is_bound);
    REQUIRE((entries.is_bound || config.storage.entries == entries.known));
    const test::HostModule module(
        std::string(kText),
        test::emitted(*mod, config,
                      {.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim}));

    int added = 0;
    for (int round = 0; round < 2; ++round) {
        const ::sm90::KernelArguments attention =
            test::random_attention(90 + below(290), 140 + below(200), random);
        ir::Environment at = test::environment_of(attention, head_dim);
        at.sizes.insert(at.sizes.end(), sized.sizes.begin(), sized.sizes.end());
        const test::RandomData data(mod->program, at, random);
        test::HostArguments arguments(*mod, at);
        arguments.clear_gradients();

        test::TilePlace place =
            test::random_tile(attention, config.block.query_tile, config.block.key_tile, random);
        const int tiles = (attention.q_len - 1) / config.block.query_tile + 1;
        std::vector<unsigned short> values;
        std::vector<std::vector<double>> gradients = arguments.empty_gradients();
        std::vector<std::vector<int>> terms;
        for (const auto& buffer : gradients)
            terms.emplace_back(buffer.size());
        const int infinite = tables.is_finite ? -1 : below(60);
        double largest = 0;
        for (int tile = 0; tile < tiles; ++tile) {
            // Tiles of several magnitudes, and of zeros.
            const double scale = tables.scale * (below(6) == 0 ? 0 : std::ldexp(1, -below(9)));
            largest = std::max(largest, scale);
            place.first_query = tile * config.block.query_tile;
            const test::TileOfDScores of_tile = test::tile_of_d_scores(
                *mod, attention, at, place, arguments.empty_gradients(),
                [&](int row, int column) -> double {
                    if (row == infinite / 2 && column == infinite) return INFINITY;
                    return test::random_real(random) * scale;
                },
                test::factor_of_tables(*mod));
            values.insert(values.end(), of_tile.values.begin(), of_tile.values.end());
            for (std::size_t buffer = 0; buffer < gradients.size(); ++buffer)
                for (std::size_t i = 0; i < gradients[buffer].size(); ++i) {
                    gradients[buffer][i] += of_tile.gradients[buffer][i];
                    terms[buffer][i] += of_tile.terms[buffer][i];
                }
        }
        CHECK(module.function<Function>("run")(arguments.words(), &attention, place.head,
                                               place.first_key, tiles, values.data()));
        const test::ComparedEntries compared =
            test::compare_entries(arguments, gradients, terms, largest,
                                  {.of_term = 0x1p-15, .more_terms = 1, .of_truth = 4e-6});
        CHECK(compared.wrong == 0);
        added += compared.added;
    }
    return added;
}

} // namespace

TEST_CASE("elements are added to the entries that they compute") {
    std::mt19937 random(test::fresh_seed());
    const auto below = test::draws_below(random);
    int added = 0;
    for (const test::TableProgram& tables : test::table_programs(random))
        added += check({tables}, below(2) == 0 ? 128 : 64, random);
    CHECK(added > 100);
}

TEST_CASE("elements are added to entries of which a call says how many there are") {
    std::mt19937 random(test::fresh_seed());
    const auto below = test::draws_below(random);
    int added = 0;
    for (test::TableProgram& tables : test::table_programs(random)) {
        auto [text, sizes] = test::with_bound_extents(tables.text, below);
        tables.text = std::move(text);
        added += check({tables, std::move(sizes)}, below(2) == 0 ? 128 : 64, random);
    }
    CHECK(added > 100);
    // One entry; as many as there is room for, of which each has one copy; several tables.
    constexpr std::int64_t kMost = 24403; // of a kernel for these gradients alone, at D 128
    for (const std::int64_t entries : {std::int64_t{1}, kMost / 2 + 1, kMost})
        CHECK(
            check(
                {{"buffer t: f32[N] grad\nscore_mod = score + t[(q_idx * 131 + kv_idx * 77) % (N + "
                  "N // 4 + 2) - N // 8]"},
                 {entries}},
                128, random) > 0);
    CHECK(check({{"buffer t: f32[3, N, H] grad\nbuffer u: f32[20] grad\nbuffer v: f32[M, 2] "
                  "grad\nscore_mod = score + t[1, (q_idx * 31 + kv_idx * 17) % 50, h] - 2 * "
                  "u[q_idx * kv_idx % 19] + v[(q_idx + kv_idx * 5) % 11, (q_idx ^ kv_idx) % 2]",
                  1, true, 3},
                 {37, 12}},
                64, random) > 0);
}
