// With every allocation failing once, and from each on: a call says so, loses nothing, and the next
// call works. Compiles and launches need different backends of the CPU, and so are two tests of
// ctest.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "faults/failing_new.h"
#include "flexc/flexc.h"
#include "flexc/flexc_c.h"

using namespace flexc;

namespace {

constexpr const char* kText = "buffer slopes: f32[H] grad\nbuffer doc: i32[KV_LEN]\n"
                              "param cap: f32 = 20\n"
                              "fn softcap(x) = cap * tanh(x / cap)\n"
                              "score_mod = softcap(score) + slopes[h] * (kv_idx - q_idx)\n"
                              "mask_mod = q_idx >= kv_idx and doc[q_idx] == doc[kv_idx]";

CompileOptions options_of(bool memory) {
    CompileOptions options;
    options.dtype = DType::f32;
    options.head_dim = 8;
    options.device = Device::cpu();
    options.cache.disk = false;
    options.cache.memory = memory;
    return options;
}

// `call` returns the code of its failure, and whether it failed.
struct Outcome {
    bool failed = false;
    bool says_so = false; // that there was no memory
};
Outcome of(const Error& error) {
    return {true, error.code == ErrorCode::limit && error.message == "out of memory"};
}
template <typename T> Outcome of(const Result<T>& result) {
    return result ? Outcome{} : of(result.error());
}

// The thread of a compile frees its last things when the call has returned.
std::int64_t living_at_rest() {
    while (true) {
        const std::int64_t living = test::living();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        if (test::living() == living) return living;
    }
}

// A call may succeed without what it had no memory for. rarer: of very many allocations, one in
// this many of all before it.
template <typename Call> void fail_everywhere(const Call& call, std::int64_t rarer = INT64_MAX) {
    REQUIRE(!call().failed);
    REQUIRE(!call().failed); // what a first call keeps is kept
    for (const auto how : {test::Failing::once, test::Failing::from_then_on}) {
        CAPTURE(how == test::Failing::once);
        const std::int64_t before = living_at_rest();
        std::int64_t refused = 0, at = 0;
        for (bool reached = true; reached; at += 1 + at / rarer) {
            test::fail_after(at, how);
            const Outcome outcome = call();
            test::fail_no_more();
            reached = test::has_failed();
            if (outcome.failed) {
                ++refused;
                if (!outcome.says_so) FAIL_CHECK("another error at allocation " << at);
            }
            // Not each time: a success takes as long as a failure.
            if (refused % 64 == 0) CHECK(!call().failed);
        }
        CHECK((refused > 0 || at <= 1)); // launches allocate next to nothing
        CHECK(!call().failed);
        CHECK(living_at_rest() == before);
        MESSAGE(at, " allocations, ", refused, " failures said");
    }
}

// Whether this process has the backend of stub_backend.cpp. LLVM would end it where an allocation
// fails, and the stub computes nothing.
bool has_stub() {
    const char* path = std::getenv("FLEXC_CPU_BACKEND");
    return path != nullptr && std::string(path).find("flexc_stub_backend") != std::string::npos;
}
void need_stub() {
    if (!has_stub())
        FAIL("set FLEXC_CPU_BACKEND to flexc_stub_backend.so, as ctest -R '^faults$' does");
}

} // namespace

TEST_CASE("compile: every allocation of the C++ calls") {
    need_stub();
    SUBCASE("compile") {
        fail_everywhere([] { return of(compile(kText, options_of(false))); });
    }
    SUBCASE("compile, with the cache in memory") {
        const CompileOptions options = options_of(true);
        fail_everywhere([&] {
            (void)clear_cache(options.cache);
            const Outcome outcome = of(compile(kText, options));
            return outcome;
        });
    }
    SUBCASE("check") {
        fail_everywhere([] { return of(check(kText, options_of(false))); });
    }
    SUBCASE("a text that is wrong") {
        fail_everywhere([] {
            const auto result = check("score_mod = scor + kv_idy", options_of(false));
            if (!result && result.error().code == ErrorCode::syntax) return Outcome{};
            return of(result);
        });
    }
    SUBCASE("explain") {
        for (const char* stage : {"ir", "grad", "cuda", "llvm", "plan"}) {
            CAPTURE(stage);
            fail_everywhere([&] { return of(explain(kText, stage, options_of(false))); });
        }
    }
    SUBCASE("mask_map") {
        const Sizes sizes{1, 2, 1, 100, 200};
        fail_everywhere([&] {
            return of(mask_map("mask_mod = q_idx % 3 >= kv_idx % 5", options_of(false), sizes));
        });
    }
}

// NVRTC has memory of its own: what stands around it, with kernels from the cache on disk.
TEST_CASE("compile: allocations of a compile for a GPU") {
    CompileOptions options = options_of(false);
    options.dtype = DType::bf16;
    options.cache.disk = true;
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("flexc_faults_" + std::to_string(::getpid()));
    options.cache.directory = folder.string();
    const auto compiled = [&] { return compile_offline(kText, options, "sm_80"); };
    const auto first = compiled();
    if (first || first.error().code != ErrorCode::library_missing) {
        REQUIRE_MESSAGE(first, first.error().message);
        fail_everywhere([&] { return of(compiled()); }, 50);
    }
    std::filesystem::remove_all(folder);
}

namespace {

// Of a C call that makes an object where it succeeds.
template <typename Object, typename Create>
Outcome c_outcome(const Create& create, void (*free)(Object*)) {
    Object* object = nullptr;
    flexc_error* error = nullptr;
    const flexc_status status = create(&object, &error);
    const Outcome outcome{status != FLEXC_OK,
                          status == FLEXC_ERROR_LIMIT &&
                              std::string(flexc_error_message(error)) == "out of memory"};
    CHECK((object != nullptr) == (status == FLEXC_OK));
    flexc_error_free(error);
    free(object);
    return outcome;
}

} // namespace

TEST_CASE("compile: every allocation of the C calls") {
    need_stub();
    flexc_compile_options options{};
    options.struct_size = sizeof options;
    options.dtype = FLEXC_F32;
    options.head_dim = 8;
    options.device = FLEXC_DEVICE_CPU;
    options.no_memory_cache = options.no_disk_cache = 1;
    SUBCASE("compile") {
        fail_everywhere([&] {
            return c_outcome<flexc_kernel>(
                [&](auto** kernel, auto** error) {
                    return flexc_compile(kText, &options, kernel, error);
                },
                flexc_kernel_free);
        });
    }
    SUBCASE("explain") {
        fail_everywhere([&] {
            return c_outcome<flexc_text>(
                [&](auto** text, auto** error) {
                    return flexc_explain(kText, "deps", &options, nullptr, text, error);
                },
                flexc_text_free);
        });
    }
    SUBCASE("mask map") {
        const flexc_sizes sizes{sizeof sizes, 0, 1, 2, 1, 100, 200};
        fail_everywhere([&] {
            return c_outcome<flexc_mask_map>(
                [&](auto** map, auto** error) {
                    return flexc_mask_map_create("mask_mod = q_idx >= kv_idx", &options, &sizes,
                                                 nullptr, 0, nullptr, nullptr, map, error);
                },
                flexc_mask_map_free);
        });
    }
    SUBCASE("library") {
        fail_everywhere(
            [] { return c_outcome<flexc_library>(flexc_library_create, flexc_library_free); });
        flexc_library* library = nullptr;
        REQUIRE(flexc_library_create(&library, nullptr) == FLEXC_OK);
        fail_everywhere([&] {
            flexc_error* error = nullptr;
            flexc_library_entry entry{};
            entry.struct_size = sizeof entry;
            const Outcome outcome{flexc_library_find(library, "natten", &entry, &error) != FLEXC_OK,
                                  std::string(flexc_error_message(error)) == "out of memory"};
            flexc_error_free(error);
            return outcome;
        });
        flexc_library_free(library);
    }
    SUBCASE("supports") {
        fail_everywhere([&] {
            flexc_error* error = nullptr;
            const Outcome outcome{flexc_supports(kText, &options, nullptr, &error) != FLEXC_OK,
                                  std::string(flexc_error_message(error)) == "out of memory"};
            flexc_error_free(error);
            return outcome;
        });
    }
}

TEST_CASE("launch: every allocation of plans and launches") {
    if (has_stub()) FAIL("unset FLEXC_CPU_BACKEND, as ctest -R faults_launch does");
    auto options = options_of(false);
    const auto kernel = compile(kText, options);
    if (!kernel && kernel.error().code == ErrorCode::library_missing) return;
    REQUIRE_MESSAGE(kernel, kernel.error().message);
    const Sizes sizes{1, 2, 1, 40, 40};
    std::vector<float> q(2 * 40 * 8), k(40 * 8), v(40 * 8), o(2 * 40 * 8), lse(2 * 40), slopes(2),
        d_out(q.size(), 1), dq(q.size()), dk(k.size()), dv(v.size()), d_slopes(2);
    std::vector<std::int32_t> doc(40);
    const auto view = [](std::vector<float>& data, std::initializer_list<std::int64_t> shape) {
        return TensorView::contiguous(data.data(), DType::f32, shape);
    };
    const std::array buffers = {
        NamedTensor{"slopes", view(slopes, {2})},
        NamedTensor{"doc", TensorView::contiguous(doc.data(), DType::i32, {40})}};
    const std::array gradients = {NamedTensor{"slopes", view(d_slopes, {2})}};
    const auto first = kernel->plan(sizes, buffers);
    REQUIRE(first);
    std::vector<std::byte> space(first->workspace_bytes());
    const Workspace workspace{space.data(), space.size()};
    const ForwardTensors forward{view(q, {1, 2, 40, 8}), view(k, {1, 1, 40, 8}),
                                 view(v, {1, 1, 40, 8}), view(o, {1, 2, 40, 8}),
                                 view(lse, {1, 2, 40})};
    BackwardTensors backward{forward.q, forward.k,   forward.v,
                             forward.o, forward.lse, view(d_out, {1, 2, 40, 8})};
    backward.dq = view(dq, {1, 2, 40, 8});
    backward.dk = view(dk, {1, 1, 40, 8});
    backward.dv = view(dv, {1, 1, 40, 8});
    SUBCASE("plan and update") {
        fail_everywhere([&] {
            const auto plan = kernel->plan(sizes, buffers);
            return plan ? of(kernel->update(*plan, buffers)) : of(plan);
        });
    }
    SUBCASE("forward") {
        fail_everywhere([&] { return of(kernel->forward(*first, forward, buffers, workspace)); });
    }
    SUBCASE("backward") {
        fail_everywhere(
            [&] { return of(kernel->backward(*first, backward, buffers, gradients, workspace)); });
    }
    SUBCASE("what is missing") {
        fail_everywhere([&] {
            const auto done = kernel->forward(*first, {}, buffers, workspace);
            return !done && done.error().code == ErrorCode::invalid_option ? Outcome{} : of(done);
        });
    }
}
