// Gradients of the terms of sums over a tile, as the warps of Hopper's backward find them: run by
// threads of the host, against the derivative of each term of each element.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cuda/emitted.h"
#include "d_scores.h"
#include "draws.h"
#include "host_arguments.h"
#include "host_module.h"
#include "passes/distance_value.h"
#include "passes/gradient_sum.h"
#include "passes/term_gradient.h"
#include "plan/arch/sm90/sm90.h"
#include "program_of.h"
#include "random_data.h"
#include "random_program.h"
#include "sm90/arguments.h"
#include "sm90/backward_layout.h"
#include "term_program.h"

namespace {

using namespace flexc;

// values: of each element, [query][key][d_modified, score]. tabulated: values of each of
// `distances` distances, of which the one in the middle is 0.
using Function = void(const std::uint64_t* words, const ::sm90::KernelArguments*, int head,
                      int tile_query, int first_key, const float* values, const float* tabulated,
                      int distances);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/gradients/terms.cuh"
using namespace sm90;
unsigned char shared_memory[1];
struct Elements {
    const KernelArguments& attention;
    const mod::Arguments& arguments;
    const HeadPlace& place;
    int tile_query, warp_key;
    const float* tabulated;
    int distances;
    mod::Column columns[2]{};

    void find_columns() {
        for (int k = 0; k < 2; ++k)
            columns[k] = mod::at_column(
                arguments, place.launch, place.head, place.b, place.h, place.h_kv,
                std::min(key(k), attention.kv_len - 1) + attention.kv_offset);
    }
    template <typename Visit> void visit_element(int q, int kv, Visit visit) const {
        const mod::Row row = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                         place.h_kv, q);
        const mod::Column column = mod::at_column(arguments, place.launch, place.head, place.b,
                                                  place.h, place.h_kv, kv);
        visit(mod::At{arguments, place.launch, place.head, row, column, place.b, place.h,
                      place.h_kv, q, kv, q, kv, tabulated + distances / 2, distances, q - kv});
    }
    int query(int j) const { return tile_query + lane_again() % 4 * 2 + query_of(j); }
    int key(int key) const { return warp_key + lane_again() / 4 + 8 * key; }
    template <typename Visit> void visit_tile(Visit visit) const {
        for (int j = 0; j < kScoreQueries / 4; ++j)
            for (int k = 0; k < 2; ++k)
                visit_element(std::min(query(j), attention.q_len - 1) + attention.q_offset,
                              std::min(key(k), attention.kv_len - 1) + attention.kv_offset,
                              [&](const mod::At& at) { visit(k, j, accumulator(k, j), at); });
    }
    bool has_key(int k) const { return key(k) < attention.kv_len; }
    mod::At at_key(const mod::Row& row, int k) const {
        return {arguments, place.launch, place.head, row, columns[k], place.b, place.h,
                place.h_kv, 0, key(k) + attention.kv_offset};
    }
    template <typename Visit> void visit_query(int query, Visit visit) const {
        if (tile_query + query < attention.q_len)
            visit_element(tile_query + query + attention.q_offset, 0, visit);
    }
};
struct Entering {
    const mod::At& at;
    float score;
    void load(int, int, float (&values)[TermElements::kSlots]) const {
        mod::ElementSums::enter(at, score, values);
    }
};
extern "C" void run(const unsigned long long* words, const KernelArguments* attention, int head,
                    int tile_query, int first_key, const float* values, const float* tabulated,
                    int distances) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    run_block(32 * mod::kWarps, [&] {
        const int warp = thread_again() / 32 - 4;
        if (warp < 0) return;
        Elements of{*attention, arguments, place, tile_query, first_key + 16 * warp,
                    tabulated, distances};
        of.find_columns();
        TermElements kept;
        of.visit_tile([&](int key, int j, int i, const mod::At& at) {
            const int row = of.query(j) - tile_query, column = of.key(key) - first_key;
            const float* const value = values + 2 * (row * mod::kKeyTile + column);
            kept.keep(i, Entering{at, value[1]}, key, j, value[0]);
        });
        clear_terms();
        sum_terms(kept, of);
        sum_terms(kept, of);
        flush_terms(of);
    });
}
)";

plan::KernelConfig config_of(int words) {
    plan::KernelConfig config;
    config.kind = plan::KernelKind::backward_fused;
    config.family = plan::sm90::kName;
    config.block = {
        .query_tile = 64, .key_tile = 128, .warps = 12, .stages = 2, .shared_bytes = 232448};
    config.storage.term_words = words;
    config.storage.term_keys = ::sm90::kTermKeys;
    config.sum_elements = 16;
    return config;
}

// Adds what an element adds to the terms of a read.
void add_terms(const passes::Mod& mod, const passes::ReadGradient& gradient,
               const ir::Environment& at, double d_modified, std::vector<double>& sums,
               std::vector<double>& sizes) {
    test::visit_terms(mod, gradient, at, [&](std::size_t element, double partial) {
        sums[element] += d_modified * partial;
        sizes[element] += std::abs(d_modified * partial);
    });
}

void check(const std::string& text, bool deterministic, bool keeps, std::mt19937& random) {
    CAPTURE(text);
    CAPTURE(deterministic);
    CAPTURE(keeps);
    passes::PipelineOptions options;
    options.deterministic = deterministic;
    const passes::Mod mod = test::lowered(text, options);
    // Otherwise all terms are functions of the distance.
    if (!passes::sums_by(mod, passes::GradientSum::terms)) return;
    REQUIRE_FALSE(passes::adds_terms_by_element(mod));
    const passes::TermReads reads = passes::count_term_reads(mod, passes::terms_by_tile(mod));
    const plan::KernelConfig config = config_of(keeps ? reads.words(::sm90::kTermKeys) : 0);
    const test::HostModule module(std::string(kText),
                                  test::emitted(mod, config, {.dtype = DType::f16}));
    const auto below = test::draws_below(random);
    for (int round = 0; round < 2; ++round) {
        const ::sm90::KernelArguments attention =
            test::random_attention(1 + below(150), 1 + below(200), random);
        ir::Environment at = test::environment_of(attention, 64);
        const test::RandomData data(mod.program, at, random);
        test::HostArguments arguments(mod, at);
        arguments.clear_gradients();
        const test::TilePlace place = test::random_tile(attention, 64, 128, random);
        std::vector<std::vector<double>> expected = arguments.empty_gradients(), sizes = expected;
        std::vector<float> values(2 * 64 * 128);
        at.b = place.head / attention.heads;
        at.h = place.head % attention.heads;
        at.h_kv = at.h / (attention.heads / attention.kv_heads);
        for (int row = 0; row < 64; ++row)
            for (int column = 0; column < 128; ++column) {
                const int q = place.first_query + row, kv = place.first_key + column;
                if (q >= attention.q_len || kv >= attention.kv_len || below(5) == 0) continue;
                float* const value = &values[static_cast<std::size_t>(2 * (row * 128 + column))];
                value[0] = static_cast<float>(test::random_real(random));
                value[1] = static_cast<float>(test::random_real(random));
                at.q_idx = q + attention.q_offset;
                at.kv_idx = kv + attention.kv_offset;
                at.score = value[1];
                if (!ir::evaluate_boolean(mod.program, mod.mask, at)) value[0] = 0;
                if (value[0] == 0) continue;
                for (const passes::ReadGradient& gradient : passes::terms_by_tile(mod)) {
                    const std::uint32_t buffer = mod.program.graph[gradient.read].symbol;
                    // The tile is summed twice.
                    add_terms(mod, gradient, at, 2.0 * value[0], expected[buffer], sizes[buffer]);
                }
            }
        constexpr int kDistances = 1001;
        std::vector<float> tabulated;
        for (const ir::NodeId value : passes::distance_values(mod))
            for (int i = 0; i < kDistances; ++i) {
                at.q_idx = std::max(i - kDistances / 2, 0);
                at.kv_idx = std::max(kDistances / 2 - i, 0);
                tabulated.push_back(static_cast<float>(ir::evaluate_real(mod.program, value, at)));
            }
        module.function<Function>("run")(arguments.words(), &attention, place.head,
                                         place.first_query, place.first_key, values.data(),
                                         tabulated.data(), kDistances);
        for (std::size_t buffer = 0; buffer < expected.size(); ++buffer) {
            int wrong = 0;
            for (std::size_t i = 0; i < expected[buffer].size(); ++i) {
                const double difference = expected[buffer][i] - arguments.gradient(buffer, i);
                if (!(std::abs(difference) <= 1e-5 + 1e-5 * sizes[buffer][i])) ++wrong;
            }
            CHECK_MESSAGE(wrong == 0, mod.program.buffers[buffer].name, ": ", wrong, " of ",
                          expected[buffer].size());
        }
    }
}

} // namespace

TEST_CASE("sums over a tile are the gradients of terms, wherever their sums are kept") {
    constexpr int kPrograms = 12;
    const std::uint64_t seed = test::first_seed();
    CAPTURE(seed);
    test::Random programs(seed);
    std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
    for (int i = 0; i < kPrograms; ++i)
        check(test::term_program(programs), i % 4 == 3, i % 3 > 0, random);
}

TEST_CASE("hidden elements whose parts are infinite add nothing") {
    std::mt19937 random(1);
    check("buffer w: f32[H, 9] grad\nbuffer m: f32[9] grad\n"
          "score_mod = score + sum(i in 0..9: w[h, i] * log(abs(m[i]) * (q_idx - kv_idx) ** 2))\n"
          "mask_mod = q_idx != kv_idx",
          false, true, random);
}
