// Programs that compilers take very long for, compiles that are cancelled, and what is remembered.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "api/context.h"
#include "api/cuda_kernels.h"
#include "api/frontend.h"
#include "cpu_options.h"
#include "cuda/nvrtc.h"
#include "flexc/flexc.h"
#include "flexc/flexc_c.h"
#include "plan/work.h"

using namespace flexc;
using test::cpu_options;
using test::has_cpu;
using namespace std::chrono_literals;

namespace {

// 40 programs, each of one operator after the other.
std::string strange(int number) {
    const char* steps[] = {"sin(x) * cos(x)", "exp(x) / (1 + x * x)", "tanh(x) + x ** 2.5",
                           "where(x > h, x * x, log(abs(x) + 1))", "sigmoid(x) - erf(x * 0.3)"};
    std::string text = "score_mod {\n  x = score\n";
    const int length = 20 + number;
    for (int i = 0; i < length; ++i)
        text += std::string("  x = ") + steps[(number + (number % 2 == 0 ? 0 : i)) % 5] + "\n";
    return text + "  x\n}\n";
}

// Threads of compilers that were given up run on: a test that ends waits for them.
struct WaitForCompilers {
    ~WaitForCompilers() {
        while (api::Context::instance().runs->abandoned > 0)
            std::this_thread::sleep_for(10ms);
    }
};

double seconds_of(const auto& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace

TEST_CASE("strange programs end within the limit and two seconds") {
    if (!has_cpu()) return;
    const WaitForCompilers wait;
    CompileOptions options = cpu_options();
    options.cache.memory = false;
    int stopped = 0;
    for (int i = 0; i < 40; ++i) {
        CAPTURE(i);
        // A fast machine compiles all within the longer limit and none within the shorter one.
        options.limits.seconds = i % 2 ? 0.2 : 0.005;
        const double taken = seconds_of([&] {
            const auto kernel = compile(strange(i), options);
            if (kernel) return;
            CHECK(kernel.error().code == ErrorCode::limit);
            ++stopped;
        });
        CHECK(taken < options.limits.seconds + 2);
    }
    CHECK(stopped > 0);
}

TEST_CASE("NVRTC ends soon after its limit") {
    if (!cuda::nvrtc_info()) return;
    const WaitForCompilers wait;
    CompileOptions options;
    options.head_dim = options.head_dim_v = 128;
    options.cache = {.memory = false, .disk = false};
    std::string text = "score_mod {\n  x = score\n";
    for (int i = 0; i < 300; ++i)
        text += "  x = sin(x) * cos(x)\n";
    text += "  x\n}\n";
    for (const double seconds : {0.3, 2.0}) {
        CAPTURE(seconds);
        options.limits.seconds = seconds;
        const double taken = seconds_of([&] {
            const auto result = compile_offline(text, options, "sm_90a");
            REQUIRE(!result);
            CHECK(result.error().code == ErrorCode::limit);
            CHECK(result.error().message.find("seconds") != std::string::npos);
        });
        // Without a limit it takes minutes.
        CHECK(taken < seconds + 20);
    }
}

TEST_CASE("a compile that was stopped is remembered, one that was cancelled is not") {
    if (!has_cpu()) return;
    const WaitForCompilers wait;
    CompileOptions options = cpu_options();
    options.limits.seconds = 1e-6;
    const std::string text = "score * 1.25 + sin(score)";
    const auto first = compile(text, options);
    REQUIRE(!first);
    CHECK(first.error().code == ErrorCode::limit);
    const auto failures = api::Context::instance().kernels.statistics().failures;
    const auto again = compile(text, options);
    REQUIRE(!again);
    CHECK(again.error().message == first.error().message);
    CHECK(api::Context::instance().kernels.statistics().failures == failures); // nobody tried
    options.limits.seconds = 0;
    CHECK(compile(text, options)); // a wider limit

    const std::string other = "score * 1.5 + sin(score)";
    options.cancel = CancelToken::create();
    options.cancel.cancel();
    const auto cancelled = compile(other, options);
    REQUIRE(!cancelled);
    CHECK(cancelled.error().code == ErrorCode::cancelled);
    options.cancel = {};
    CHECK(compile(other, options));
}

TEST_CASE("whoever waits for a compile that its maker cancels makes it again") {
    if (!has_cpu()) return;
    const WaitForCompilers wait;
    CompileOptions mine = cpu_options(), theirs = mine;
    theirs.cancel = CancelToken::create();
    theirs.limits = mine.limits = {.seconds = 0, .memory_bytes = 0};
    const std::string text = strange(1);
    std::jthread maker([&] { (void)compile(text, theirs); });
    std::this_thread::sleep_for(30ms);
    std::jthread canceller([&] {
        std::this_thread::sleep_for(50ms);
        theirs.cancel.cancel();
    });
    const auto kernel = compile(text, mine);
    CHECK_MESSAGE(kernel, (kernel ? "" : kernel.error().message));
}

TEST_CASE("no mod of the library is large") {
    for (const LibraryEntry& entry : library()) {
        const auto mod = api::lower_text(entry.text, {});
        REQUIRE_MESSAGE(mod, mod.error().message);
        CHECK_MESSAGE(!plan::is_large(*mod), entry.name);
        std::vector<ir::NodeId> roots = {mod->score, mod->d_score};
        for (const passes::ReadGradient& gradient : mod->gradients)
            roots.push_back(gradient.partial);
        CHECK_MESSAGE(!plan::is_long(*mod, roots), entry.name);
    }
}

TEST_CASE("C: limits of a compile and its cancellation") {
    if (!has_cpu()) return;
    const WaitForCompilers wait;
    flexc_compile_options options{};
    options.struct_size = sizeof options;
    options.dtype = FLEXC_F32;
    options.head_dim = 8;
    options.device = FLEXC_DEVICE_CPU;
    options.no_disk_cache = options.no_memory_cache = 1;
    flexc_kernel* kernel = nullptr;
    options.max_compile_seconds = 1e-6;
    CHECK(flexc_compile("score * 3", &options, &kernel, nullptr) == FLEXC_ERROR_LIMIT);
    options.max_compile_seconds = -1;
    options.max_compile_memory = UINT64_MAX;
    CHECK(flexc_compile("score * 3", &options, &kernel, nullptr) == FLEXC_OK);
    flexc_kernel_free(kernel);
    flexc_cancel_token* token = flexc_cancel_token_create();
    REQUIRE(token != nullptr);
    options.cancel = token;
    CHECK(flexc_compile("score * 3", &options, &kernel, nullptr) == FLEXC_OK);
    flexc_kernel_free(kernel);
    flexc_cancel(token);
    CHECK(flexc_compile("score * 3", &options, &kernel, nullptr) == FLEXC_ERROR_CANCELLED);
    CHECK(kernel == nullptr);
    flexc_cancel_token_free(token);
    flexc_cancel_token_free(nullptr);
    flexc_cancel(nullptr);
}
