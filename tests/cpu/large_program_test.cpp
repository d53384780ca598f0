// Programs near the limit of nodes: they compile in seconds, without vectors, and are right.
#include <doctest/doctest.h>

#include <ctime>
#include <string>

#include "harness.h"
#include "support/text.h"

using namespace flexc;
using namespace flexc::test;

namespace {

void check_compile_time(const std::string& text, [[maybe_unused]] double seconds) {
    CAPTURE(text.substr(0, 100));
    const Problem shape{.batch = 1,
                        .heads = 2,
                        .kv_heads = 1,
                        .q_len = 5,
                        .kv_len = 20,
                        .head_dim = 16,
                        .head_dim_v = 4};
    const ir::Program program = program_of(text);
    const Problem problem = make_problem(program, shape, 3, {{"N", 9}});
    const passes::Mod mod = mod_of(program, problem, {});
    [[maybe_unused]] const std::clock_t start = std::clock();
    const auto executable = compile_for(mod, problem, {});
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    CHECK(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC < seconds);
#endif
    check_close(run(mod, *executable, problem, {}), attention_oracle(program, problem), {});
}

std::string repeated(const std::string& statement, int count) {
    std::string text = "score_mod {\n  x = score\n";
    for (int i = 0; i < count; ++i)
        text += "  x = " + statement + "\n";
    return text + "  x\n}\n";
}

} // namespace

// With vectors and unrolled loops these took 11 to 30 seconds.
TEST_CASE("large programs compile in seconds of processor time") {
    std::string reads = "buffer a: f32[H, N] grad\nscore_mod = score";
    for (int i = 0; i < 300; ++i)
        reads += formatted(" + 0.01 * a[h, (kv_idx * {} + q_idx) % N]", i + 3);
    check_compile_time(reads, 10);
    check_compile_time(repeated("sin(x) * cos(x)", 400), 8);
    check_compile_time(repeated("x * 0.5 + tanh(x) * 0.25", 300), 8);
}
