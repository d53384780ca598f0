// Compiling once and again, from text and from object bytes, and what the loader says.
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "cpu/emit_llvm.h"
#include "cpu/loader.h"
#include "harness.h"

using namespace flexc;
using namespace flexc::test;

namespace {

const char* const kText =
    "buffer s: f32[H] grad\nscore_mod = tanh(score) + s[h] * (kv_idx - q_idx)\n"
    "mask_mod = q_idx >= kv_idx";

struct Case {
    ir::Program program = program_of(kText);
    Problem problem = make_problem(program,
                                   {.batch = 1,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .q_len = 20,
                                    .kv_len = 30,
                                    .head_dim = 8,
                                    .head_dim_v = 8},
                                   1);
    passes::Mod mod = mod_of(program, problem, {});
    Answer expected = attention_oracle(program, problem);
};

} // namespace

TEST_CASE("object bytes give the same kernel without the optimiser") {
    const Case c;
    const auto fresh = compile_for(c.mod, c.problem, {});
    CHECK_FALSE(fresh->from_object());
    REQUIRE_FALSE(fresh->object_bytes().empty());
    const cpu::ExecutableOptions options{.head_dim = 8, .head_dim_v = 8, .threads = 2};
    const auto again = cpu::compile(c.mod, options, fresh->object_bytes());
    REQUIRE(again.has_value());
    CHECK((*again)->from_object());
    CHECK((*again)->object_bytes() == fresh->object_bytes());
    check_close(run(c.mod, **again, c.problem, {}), c.expected, {});
}

TEST_CASE("object bytes that are damaged are compiled anew") {
    const Case c;
    const std::string good(compile_for(c.mod, c.problem, {})->object_bytes());
    for (const std::string& bytes :
         {std::string(), std::string("not an object"), good.substr(0, 200)}) {
        const auto compiled =
            cpu::compile(c.mod, {.head_dim = 8, .head_dim_v = 8, .threads = 2}, bytes);
        REQUIRE(compiled.has_value());
        CHECK_FALSE((*compiled)->from_object());
        CHECK((*compiled)->object_bytes() == good);
        check_close(run(c.mod, **compiled, c.problem, {}), c.expected, {});
    }
}

TEST_CASE("a kernel without backward refuses it") {
    const Case c;
    const passes::Mod mod = mod_of(c.program, c.problem, {.backward = false});
    const auto executable = compile_for(mod, c.problem, {.backward = false});
    CHECK(executable->gradient_buffers().empty());
    check_close(run(mod, *executable, c.problem, {.backward = false}), c.expected,
                {.backward = false});
    cpu::Call call{};
    CHECK_FALSE(executable->backward(call).has_value());
}

TEST_CASE("many threads may compile and call at once") {
    const Case c;
    const auto shared = compile_for(c.mod, c.problem, {});
    const std::vector<float> expected = run(c.mod, *shared, c.problem, {}).bits();
    std::vector<int> equal(6, 0);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < equal.size(); ++i)
        threads.emplace_back([&, i] {
            const auto own = i % 2 == 0 ? shared : compile_for(c.mod, c.problem, {});
            const std::vector<float> got = run(c.mod, *own, c.problem, {}).bits();
            equal[i] = std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)) == 0;
        });
    for (std::thread& thread : threads)
        thread.join();
    for (int one : equal)
        CHECK(one == 1);
}

TEST_CASE("the emitted text shows the mod, stands alone and stays the same") {
    const Case c;
    const std::string text = cpu::generated_llvm(c.mod);
    CHECK(text == cpu::generated_llvm(c.mod));
    CHECK(text.find("define void @flexc_forward(") != std::string::npos);
    CHECK(text.find("define void @flexc_backward_full(") != std::string::npos);
    CHECK(text.find("@flexc_tanh") != std::string::npos);
    CHECK(text.size() < cpu::emit_llvm(c.mod).text.size());
}

TEST_CASE("the identity names the versions and the processor") {
    const auto identity = cpu::backend_identity();
    REQUIRE(identity.has_value());
    for (const char* part : {"LLVM ", "libxsmm ", "oneTBB "})
        CHECK(identity->find(part) != std::string::npos);
}
