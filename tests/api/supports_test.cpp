// What supports() refuses is refused by a compile in the same words, and nothing is compiled for
// it.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/nvrtc.h"
#include "flexc/flexc.h"

using namespace flexc;

namespace {

struct Question {
    std::string text = "score";
    CompileOptions options;
    std::string arch;
};

// By the compile that the question is about.
Result<void> compiled(const Question& one) {
    if (one.arch.empty()) {
        auto kernel = compile(one.text, one.options);
        return kernel ? Result<void>() : kernel.error();
    }
    auto result = compile_offline(one.text, one.options, one.arch);
    return result ? Result<void>() : result.error();
}

void check_refused(const Question& one) {
    CAPTURE(one.text);
    CAPTURE(one.arch);
    const auto said = supports(one.text, one.options, one.arch);
    const auto done = compiled(one);
    REQUIRE_FALSE(done);
    REQUIRE_FALSE(said);
    CHECK(said.error().code == done.error().code);
    CHECK(said.error().message == done.error().message);
}

const CompileOptions kNoCache = {.cache = {.memory = false, .disk = false}};

} // namespace

TEST_CASE("what is not supported, in the words of the compile") {
    CompileOptions cpu = kNoCache, hopper = kNoCache;
    cpu.device = Device::cpu();
    hopper.forward_kernel = ForwardKernel::specialized;
    check_refused({.text = "score + kv_idy", .options = cpu});
    check_refused({.text = "score + kv_idy", .options = kNoCache, .arch = "sm_90a"});
    for (const int dim : {-1, 257}) {
        Question one{.options = cpu};
        one.options.head_dim = dim;
        check_refused(one);
    }
    Question one{.options = cpu};
    one.options.dtype = DType::i32;
    check_refused(one);
    one = {.options = cpu};
    one.options.backward_kernel = BackwardKernel::specialized;
    check_refused(one);
    one.options.backward = false;
    CHECK(supports(one.text, one.options).has_value() == compiled(one).has_value());

    // Some other than the first GPU: here there is either none or not so many.
    one = {.options = kNoCache};
    one.options.device = Device::cuda(1000);
    check_refused(one);
    for (const char* arch : {"sm_75", "sm_", "90a", "sm_90b"})
        check_refused({.options = kNoCache, .arch = arch});
    if (!cuda::nvrtc_info()) return check_refused({.options = kNoCache, .arch = "sm_80"});
    check_refused({.options = hopper, .arch = "sm_80"});
    check_refused({.options = kNoCache, .arch = "sm_999"});
    one = {.options = kNoCache, .arch = "sm_90a"};
    one.options.schedule = "keys=1";
    check_refused(one);
    hopper.dtype = DType::f32;
    check_refused({.options = hopper, .arch = "sm_90a"});
}

TEST_CASE("what is supported is compiled by nobody yet") {
    std::vector<std::string> heard;
    CompileOptions options = kNoCache;
    options.head_dim = 24;
    options.log = {.write =
                       [](void* user, LogLevel, std::string_view text) {
                           static_cast<std::vector<std::string>*>(user)->emplace_back(text);
                       },
                   .user = &heard};
    const CacheStatistics before = cache_statistics(options.cache);
    if (cuda::nvrtc_info())
        for (const char* arch : {"sm_80", "sm_90a"})
            CHECK(supports("score * 3", options, arch));
    options.device = Device::cpu();
    const auto here = supports("score * 3", options);
    CHECK(here.has_value() == compile("score", options).has_value());
    const CacheStatistics after = cache_statistics(options.cache);
    CHECK(after.memory_hits == before.memory_hits);
    // Only the compile of the other program has something to tell.
    for (const std::string& text : heard)
        CHECK(text.find("score * 3") == std::string::npos);
}

TEST_CASE("a mod of the library by its names") {
    for (const LibraryEntry& entry : library()) {
        CHECK(library_mod(entry.name)->text == entry.text);
        for (std::string other : entry.also_called) {
            CHECK(library_mod(other)->name == entry.name);
            other[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(other[0])));
            CHECK(library_mod(other)->name == entry.name);
        }
    }
    CHECK(library_mod("alibbi").error().message.find("did you mean 'alibi'?") != std::string::npos);
    CHECK_FALSE(library_mod(""));
    CHECK_FALSE(library_mod(std::string(100'000, 'a')));
}

TEST_CASE(
    "a specialized kernel that was demanded leaves calls that it cannot take to generic ones") {
    if (!cuda::nvrtc_info()) return;
    CompileOptions options = kNoCache;
    options.dtype = DType::bf16;
    options.backward = false;
    options.forward_kernel = ForwardKernel::specialized;
    const auto compiled = compile_offline("score", options, "sm_90a", {.any_layout = true});
    REQUIRE_MESSAGE(compiled.has_value(), compiled.error().message);
}

TEST_CASE(
    "kernels of short sequences and few queries are compiled offline where they are asked for") {
    if (!cuda::nvrtc_info()) return;
    CompileOptions options = kNoCache;
    options.dtype = DType::bf16;
    options.backward = false;
    struct Asked {
        bool short_sequences, few_queries;
    };
    for (const Asked& asked : {Asked{false, false}, {true, false}, {false, true}}) {
        const auto compiled = compile_offline("score", options, "sm_80",
                                              {.any_layout = true,
                                               .short_sequences = asked.short_sequences,
                                               .few_queries = asked.few_queries});
        REQUIRE_MESSAGE(compiled.has_value(), compiled.error().message);
        const auto has = [&](std::string_view name) {
            return std::ranges::count(compiled->kernels, name,
                                      [](const Cubin& kernel) { return kernel.info.name; }) != 0;
        };
        CHECK(has("flexc_forward_short") == asked.short_sequences);
        CHECK(has("flexc_forward_few") == asked.few_queries);
    }
}
