// flexc_merge_parts, run by threads of the host: parts of rows of requests with few queries, joined
// beside sums of doubles.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "common/sequences.h"
#include "cuda/emitted.h"
#include "draws.h"
#include "fresh_seed.h"
#include "front/compile_text.h"
#include "host_module.h"
#include "passes/pipeline.h"
#include "plan/arch/sm80/sm80.h"
#include "sm80/arguments.h"
#include "sm80/layout.h"

namespace {

using namespace flexc;

constexpr int kColumns = 40;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Function = void(const sm80::KernelArguments*, int blocks);

// The functions before the include are what its headers name; most are not called.
constexpr std::string_view kText = R"(
inline float __shfl_sync(unsigned mask, float x, int lane) {
    return __uint_as_float(__shfl_sync(mask, __float_as_uint(x), lane));
}
#include "mod.cuh"
#include "common/shared_words.cuh"
namespace sm80 {
inline int block_index_again() { return blockIdx.x; }
inline unsigned shared_address(const void*) { return 0; }
inline float load_shared_float(unsigned from) { return loaded<float>(from); }
template <typename T> void load_shared(T& x, T& y, unsigned from) {
    x = loaded<T>(from), y = loaded<T>(from + 4);
}
inline void load_shared(float (&x)[4], unsigned from) {
    std::memcpy(x, memory_of_block + from, sizeof x);
}
template <typename... Floats> void store_shared(unsigned to, float x, float y, Floats... others) {
    const float all[] = {x, y, others...};
    std::memcpy(memory_of_block + to, all, sizeof all);
}
inline void commit_copies() {}
inline void wait_for_copies() {}
template <int> void wait_for_groups() {}
}
#include "sm80/tile.cuh"
#include "sm80/few_merging.cuh"
unsigned char shared_memory[1];
extern "C" void run(const sm80::KernelArguments* attention, int blocks) {
    const mod::Arguments arguments{};
    for (int block = 0; block < blocks; ++block) {
        std::memset(memory_of_block, 0xff, sm80::merging_bytes(mod::kHeadDimV));
        run_block(32 * sm80::kMergingWarps, [&] {
            blockIdx.x = block, gridDim.x = blocks;
            threadIdx.y = threadIdx.x / 32, threadIdx.x %= 32;
            sm80::flexc_merge_parts(*attention, arguments);
        });
    }
}
)";

test::HostModule compiled(Layout layout) {
    front::Output output = front::compile_text(
        {.source = dsl::Source("<test>", "score"), .query_layout = layout, .key_layout = layout});
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    auto mod =
        passes::lower(std::move(*output.program), {.head_dim = kColumns, .head_dim_v = kColumns});
    REQUIRE(mod.has_value());
    const plan::KernelConfig config =
        plan::sm80::few_queries_kernel({.arch = 80, .head_dim = kColumns, .head_dim_v = kColumns});
    return test::HostModule(
        std::string(kText),
        test::emitted(*mod, config, {.head_dim = kColumns, .head_dim_v = kColumns}));
}

struct Requests {
    int heads, kv_heads, most_queries;
    bool are_dense = false;          // and so alike
    std::vector<Sequence> sequences; // and the end
    std::vector<float> partial;

    int count() const { return static_cast<int>(sequences.size()) - 1; }
    int group() const { return heads / kv_heads; }
    int most_rows() const { return few_rows(most_queries, group()); }
    long long rows() const { return sequences.back().q_row; }
    int parts_of(int request) const {
        const auto b = static_cast<std::size_t>(request);
        return sequences[b + 1].first_part - sequences[b].first_part;
    }
    // A part's results of a head of keys.
    const float* part(int part, int h_kv) const {
        return &partial[static_cast<std::size_t>((part * kv_heads + h_kv) * most_rows() *
                                                 (kColumns + 2))];
    }
    float maximum(int of, int h_kv, int row) const {
        return part(of, h_kv)[most_rows() * kColumns + 2 * row];
    }
    float sum(int of, int h_kv, int row) const {
        return part(of, h_kv)[most_rows() * kColumns + 2 * row + 1];
    }
};

// turn: of the numbers of parts, which requests take one after the other.
Requests drawn(std::mt19937& random, std::size_t& turn, bool are_dense) {
    const auto below = test::draws_below(random);
    constexpr int kGroups[] = {1, 3, 4, 16, 64};
    constexpr int kParts[] = {1, 2, 8, 9, 16, 17, 30, 32, 33, 64, 65, 132, 200};
    Requests all{.are_dense = are_dense};
    const int group = kGroups[below(5)];
    all.kv_heads = 1 + below(2);
    all.heads = all.kv_heads * group;
    all.most_queries = 1 + below(group > 16 ? 2 : 5);
    const bool has_unused = !are_dense && below(2) == 0;
    const int parts_of_dense = are_dense ? kParts[turn++ % 13] : 0;
    if (are_dense) all.most_queries = std::min(all.most_queries, kMostFewRows / group);
    int part = 0;
    long long row = 0;
    for (int request = 1 + below(8); request >= 0; --request) {
        Sequence sequence{};
        sequence.q_row = row;
        sequence.first_part = part;
        if (request > 0) {
            sequence.q_len = are_dense ? all.most_queries : below(all.most_queries + 1);
            sequence.q_rows = sequence.q_len + (has_unused ? below(3) : 0);
            if (are_dense)
                part += parts_of_dense;
            else if (sequence.q_len > 0 && has_few_rows(sequence, group))
                part += kParts[turn++ % 13];
        }
        row += sequence.q_rows;
        all.sequences.push_back(sequence);
    }
    all.partial.resize(
        static_cast<std::size_t>(part * all.kv_heads * all.most_rows() * (kColumns + 2)));
    std::normal_distribution<float> normal;
    for (float& x : all.partial)
        x = normal(random);
    // Sums are positive. Some parts see nothing, and leave an output that nobody may use.
    for (int i = 0; i < part * all.kv_heads; ++i)
        for (int r = 0; r < all.most_rows(); ++r) {
            float* results =
                &all.partial[static_cast<std::size_t>(i * all.most_rows() * (kColumns + 2))];
            float* sums = results + all.most_rows() * kColumns + 2 * r;
            sums[1] = 1 + std::abs(sums[1]);
            if (below(5) > 0) continue;
            sums[0] = -kInfinity, sums[1] = 0;
            std::fill_n(results + r * kColumns, kColumns, NAN);
        }
    return all;
}

constexpr float kUntouched = -7777;
struct Outputs {
    std::vector<float> o, lse;
    bool operator==(const Outputs&) const = default;
};
Outputs merged(Function* run, Requests& all, int blocks) {
    const auto rows = static_cast<std::size_t>(all.rows() * all.heads);
    Outputs outputs{std::vector<float>(rows * kColumns + 1, kUntouched),
                    std::vector<float>(rows + 1, kUntouched)};
    sm80::KernelArguments attention{};
    attention.batch = all.count();
    attention.heads = all.heads;
    attention.kv_heads = all.kv_heads;
    attention.q_len = all.most_queries;
    attention.scale = 1;
    if (all.are_dense)
        attention.entry_parts = all.parts_of(0);
    else
        attention.sequences.sequences = all.sequences.data();
    attention.partial_results = all.partial.data();
    const std::int64_t to_next = all.are_dense ? std::int64_t{all.most_queries} * all.heads : 0;
    attention.o = {outputs.o.data(), to_next * kColumns, kColumns,
                   std::int64_t{all.heads} * kColumns, 1};
    attention.o_flags = kOutputF32;
    attention.lse = {outputs.lse.data(), to_next, 1, all.heads, 1};
    run(&attention, blocks);
    CHECK(outputs.o.back() == kUntouched);
    CHECK(outputs.lse.back() == kUntouched);
    return outputs;
}

bool is_close(double x, double expected) {
    return x == expected || std::abs(x - expected) < 1e-5 * (1 + std::abs(expected));
}

// Whether a row of a request with several parts is what doubles give.
bool is_joined(const Requests& all, int request, int h_kv, int row, const float* o, float lse) {
    const int first = all.sequences[static_cast<std::size_t>(request)].first_part;
    const int end = first + all.parts_of(request);
    double maximum = -kInfinity, sum = 0, output[kColumns] = {};
    for (int part = first; part < end; ++part)
        maximum = std::max(maximum, double{all.maximum(part, h_kv, row)});
    for (int part = first; part < end; ++part) {
        if (all.maximum(part, h_kv, row) == -kInfinity) continue;
        const double weight = std::exp(all.maximum(part, h_kv, row) - maximum);
        sum += weight * all.sum(part, h_kv, row);
        for (int column = 0; column < kColumns; ++column)
            output[column] += weight * all.part(part, h_kv)[row * kColumns + column];
    }
    bool is_right = is_close(lse, maximum == -kInfinity ? maximum : maximum + std::log(sum));
    for (int column = 0; column < kColumns; ++column)
        is_right &= is_close(o[column], maximum == -kInfinity ? 0 : output[column] / sum);
    return is_right;
}

bool is_all(const float* o, float value) {
    return std::all_of(o, o + kColumns, [&](float x) { return x == value; });
}

} // namespace

TEST_CASE("a row's parts are joined to the same bits by any number of blocks") {
    std::mt19937 random(test::fresh_seed());
    for (const bool are_dense : {false, true}) {
        CAPTURE(are_dense);
        const test::HostModule module = compiled(are_dense ? Layout::dense : Layout::ragged);
        auto* run = module.function<Function>("run");
        std::size_t turn = 0;
        for (int round = 0; turn < 13; ++round) {
            CAPTURE(round);
            Requests all = drawn(random, turn, are_dense);
            const int heads = all.count() * all.kv_heads;
            const Outputs outputs = merged(run, all, heads);
            // Of blocks that heads do not divide, some are left over.
            CHECK(merged(run, all, heads * 3 + (round % heads)) == outputs);
            int wrong = 0;
            for (int b = 0; b < all.count(); ++b) {
                const Sequence& sequence = all.sequences[static_cast<std::size_t>(b)];
                const bool is_few = has_few_rows(sequence, all.group());
                for (int query = 0; query < sequence.q_rows; ++query)
                    for (int h = 0; h < all.heads; ++h) {
                        const auto at =
                            static_cast<std::size_t>((sequence.q_row + query) * all.heads + h);
                        const float *o = &outputs.o[at * kColumns], lse = outputs.lse[at];
                        const bool is_used = query < sequence.q_len;
                        if (!is_few || (is_used && all.parts_of(b) == 1))
                            wrong += lse != kUntouched || !is_all(o, kUntouched);
                        else if (!is_used)
                            wrong += lse != -kInfinity || !is_all(o, 0);
                        else
                            wrong += !is_joined(all, b, h / all.group(),
                                                query * all.group() + h % all.group(), o, lse);
                    }
            }
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("as many warps join a row as its parts need") {
    for (int parts = 0; parts <= 1584; ++parts) {
        CAPTURE(parts);
        const int warps = sm80::warps_of_row(parts);
        CHECK((warps >= 1 && sm80::kMergingWarps % warps == 0));
        CHECK((warps == sm80::kMergingWarps || parts <= 2 * warps * sm80::kPartsAtOnce));
        CHECK(warps >= sm80::warps_of_row(parts - 1));
    }
}
