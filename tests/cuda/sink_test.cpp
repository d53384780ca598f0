// What the kernels before a backward make of a row with a sink, run on the host.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "common/arguments.h"
#include "cuda/emitted.h"
#include "host_arguments.h"
#include "host_module.h"
#include "program_of.h"
#include "support/text.h"

namespace {

using namespace flexc;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Row {
    float lse_log2, reference, product, d_lse, weight;
};
using Function = void(const std::uint64_t*, const AttentionArguments*, int row, Row*);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "common/sink.cuh"
struct Row { float lse_log2, reference, product, d_lse, weight; };
extern "C" void run(const unsigned long long* words, const AttentionArguments* given, int index,
                    Row* row) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    float statistics[64 * kRowStatistics] = {};
    AttentionArguments attention = *given;
    attention.row_statistics = statistics;
    statistics[row_statistic_place(index, kRowLseLog2)] = row->lse_log2;
    statistics[row_statistic_place(index, kRowReference)] = row->reference;
    const RowOfSink at{0, 3, index, index + static_cast<int>(attention.q_offset), index, true};
    row->weight = add_sink(attention, arguments, at, row->d_lse);
    row->lse_log2 = statistics[row_statistic_place(index, kRowLseLog2)];
    add_sink_gradients(attention, arguments, at, -row->weight * row->product);
    const RowOfSink none{0, 3, 5, 5, 5, false};
    float d_lse = 2;
    if (add_sink(attention, arguments, none, d_lse) != 0 || d_lse != 2 || statistics[5] != 0)
        row->weight = -1;
}
)";

bool is_large(float lse_log2) {
    int bits = 0;
    std::memcpy(&bits, &lse_log2, sizeof bits);
    return (bits & 1) != 0;
}

} // namespace

TEST_CASE("weights beside a sink, its gradient, and d_lse of weights without it") {
    constexpr double kLog2E = 1.4426950408889634;
    for (const bool of_products : {false, true}) {
        const passes::Mod mod =
            test::lowered(std::string("buffer a: f32[H] grad\nsink = a[h] * 2 + q_idx\n") +
                          (of_products ? "" : "score_mod = score * 2"));
        plan::KernelConfig config;
        config.kind = plan::KernelKind::delta;
        const test::HostModule module(std::string(kText),
                                      test::emitted(mod, config, {.dtype = DType::f32}));
        auto* const run = module.function<Function>("run");
        ir::BufferData data{.extents = {4}, .reals = {0, 0, 0, 0}};
        ir::Environment at;
        at.sizes = {1, 4, 2, 64, 64, 16, 16};
        at.buffers = {&data};
        AttentionArguments attention{};
        attention.heads = 4;
        attention.kv_heads = 2;
        attention.q_len = 64;
        attention.q_offset = -7; // row 7 is query 0
        attention.scale = 0.25f;
        const double unit = of_products ? 0.25 : 1; // of references
        for (const double lse : {0.0, 3.5, -20.0, 900.0, 1e10, -1e30, -kInfinity})
            for (const double above :
                 {0.0, 1.5, -3.0, 30.0, -30.0, 200.0, -200.0, 1e4, -1e4, -kInfinity})
                for (const double d_lse : {0.0, 0.75}) {
                    CAPTURE(lse);
                    CAPTURE(above);
                    CAPTURE(d_lse);
                    const bool large = std::isfinite(lse) && std::abs(lse) > 1e3;
                    const double wanted = (std::isfinite(lse) ? lse : 0) + above;
                    data.reals.assign(4, static_cast<float>(wanted / 2));
                    test::HostArguments arguments(mod, at);
                    arguments.clear_gradients();
                    // Rows of large scores see three equal ones.
                    Row row{.lse_log2 = static_cast<float>(large                ? std::log2(3.0)
                                                           : std::isfinite(lse) ? lse * kLog2E
                                                                                : 0x1p127),
                            .reference = static_cast<float>(large ? lse / unit : 0),
                            .product = 1.5f,
                            .d_lse = static_cast<float>(d_lse),
                            .weight = 0};
                    const double reference = row.reference * unit;
                    const double before = row.lse_log2;
                    const double sink = static_cast<float>(wanted / 2) * 2.0;
                    const bool was_large = is_large(row.lse_log2);
                    run(arguments.words(), &attention, 7, &row);
                    const double share = 1 / (1 + std::exp2(before - (sink - reference) * kLog2E));
                    // Errors of exponents are those of floats of their size.
                    const double size = std::max(
                        {1.0, std::min(std::abs(before), 1e4), std::min(std::abs(above), 1e4)});
                    CHECK(std::abs(row.weight - share) <= 1e-6 * (1 + share * (1 - share) * size));
                    CHECK(is_large(row.lse_log2) == was_large);
                    CHECK(arguments.gradient(0, 3) ==
                          doctest::Approx(-2 * 1.5 * row.weight).epsilon(1e-6));
                    CHECK(arguments.gradient(0, 2) == 0);
                    if (lse == -kInfinity) {
                        CHECK(row.weight == 0);
                        CHECK(row.lse_log2 == 0x1p127f);
                        CHECK(row.d_lse == static_cast<float>(d_lse));
                        continue;
                    }
                    // Of a score that has a third of the weights without the sink.
                    const double alone = 1 / 3.0,
                                 score = reference + std::log(alone) + before / kLog2E;
                    const double p = std::exp2((score - reference) * kLog2E - row.lse_log2);
                    const double tolerance = 3e-6 * size;
                    CHECK(std::abs(p - alone * (1 - share)) <= tolerance);
                    const double d_modified = p * (0.5 - (row.product - double{row.d_lse}));
                    const double expected = alone * (1 - share) * (0.5 - 1.5) + d_lse * alone;
                    CHECK(std::abs(d_modified - expected) <= tolerance);
                }
    }
}
