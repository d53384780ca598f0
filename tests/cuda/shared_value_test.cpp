// Scores of a kernel that keeps what all batch entries of a head share, run on the host: they are
// those of one that computes it for each element.
#include <vector>

#include <doctest/doctest.h>

#include "cuda/emitted.h"
#include "host_arguments.h"
#include "host_module.h"
#include "passes/shared_value.h"
#include "program_of.h"
#include "support/text.h"

namespace {

using namespace flexc;

using Function = float(const std::uint64_t*, int b, int h, int q, int kv, float score);

std::string text_of(const std::string& score) {
    return R"(
#include "mod.cuh"
extern "C" float run(const unsigned long long* words, int b, int h, int q, int kv, float score) {
    using namespace mod;
    const Arguments& arguments = *reinterpret_cast<const Arguments*>(words);
    const Launch launch = at_launch(arguments);
    const Head head = at_head(arguments, launch, b, h, h);
    const Row row = at_row(arguments, launch, head, b, h, h, q);
    const Column column = at_column(arguments, launch, head, b, h, h, kv);
    At at{arguments, launch, head, row, column, b, h, h, q, kv};
)" + score +
           "    return mod::score(at, score);\n}\n";
}

} // namespace

TEST_CASE("a kept value gives the scores that computing it does") {
    const passes::Mod mod = test::lowered(
        "buffer t: f32[H, 5, 5]\nbuffer c: f32[B]\nscore_mod = 4 * tanh(score / 4 + c[b] * "
        "t[h, q_idx // 3 - kv_idx // 3 + 2, q_idx % 3 - kv_idx % 3 + 2])\n");
    plan::KernelConfig config;
    config.kind = plan::KernelKind::forward;
    const test::HostModule computes(text_of(""), test::emitted(mod, config));
    config.sequences.is_short = true;
    config.sequences.shared_value = passes::shared_value(mod);
    REQUIRE(config.sequences.shared_value != ir::kNoNode);
    // It is of another batch entry.
    const test::HostModule keeps(
        text_of("    const At other{arguments, launch, head, row, column, b + 1, h, h, q, kv};\n"
                "    at.shared_value = shared_value(other);\n"),
        test::emitted(mod, config));
    ir::BufferData table{.extents = {2, 5, 5}}, factors{.extents = {2}, .reals = {0.5, -2}};
    for (int i = 0; i < 50; ++i)
        table.reals.push_back(i % 7 - 3);
    ir::Environment at;
    at.sizes = {2, 2, 2, 9, 9, 16, 16};
    at.buffers = {&table, &factors};
    const test::HostArguments arguments(mod, at);
    auto* const run = computes.function<Function>("run");
    auto* const run_kept = keeps.function<Function>("run");
    for (int b = 0; b < 2; ++b)
        for (int h = 0; h < 2; ++h)
            for (int q = 0; q < 9; ++q)
                for (int kv = 0; kv < 9; ++kv) {
                    const float score = static_cast<float>(q - kv) / 2;
                    CAPTURE(formatted("{} {} {} {}", b, h, q, kv));
                    CHECK(run_kept(arguments.words(), b, h, q, kv, score) ==
                          run(arguments.words(), b, h, q, kv, score));
                }
}
