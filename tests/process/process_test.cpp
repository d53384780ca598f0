// Ends and forks of processes that compile and run kernels on many threads. `test_process MODE`
// runs the mode many times, each in a fresh process that is killed when it hangs.
#include <link.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "flexc/flexc.h"

using namespace flexc;

namespace {

constexpr std::int64_t kHeads = 2, kLength = 300, kDim = 16;
constexpr unsigned kSeconds = 60; // of one process
constexpr const char* kArch = "sm_80";
constexpr int kSkipped = 77; // for ctest

std::string text_of(int number) {
    return "score_mod = score * 1." + std::to_string(number) + " + tanh(score)";
}

Result<Kernel> compiled(int number) {
    CompileOptions options;
    options.dtype = DType::f32;
    options.head_dim = kDim;
    options.device = Device::cpu();
    options.cache.disk = options.cache.memory = false;
    return compile(text_of(number), options);
}

// Forward and backward; false when a call fails or a number is not what `expected` says.
bool runs(const Kernel& kernel, float* result = nullptr) {
    const Sizes sizes{
        .batch = 1, .heads = kHeads, .kv_heads = kHeads, .q_len = kLength, .kv_len = kLength};
    const auto plan = kernel.plan(sizes);
    if (!plan) return false;
    const std::size_t count = kHeads * kLength * kDim;
    std::vector<float> in(count), o(count), lse(kHeads * kLength), dq(count), dk(count), dv(count);
    for (std::size_t i = 0; i < count; ++i)
        in[i] = static_cast<float>(i % 37) / 16 - 1;
    std::vector<std::byte> memory(plan->workspace_bytes() + 256);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    const Workspace workspace{reinterpret_cast<void*>((address + 255) / 256 * 256),
                              plan->workspace_bytes()};
    auto view = [](std::vector<float>& values, std::int64_t dim) {
        return dim == 0
                   ? TensorView::contiguous(values.data(), DType::f32, {1, kHeads, kLength})
                   : TensorView::contiguous(values.data(), DType::f32, {1, kHeads, kLength, dim});
    };
    const TensorView q = view(in, kDim), out = view(o, kDim), row = view(lse, 0);
    if (!kernel.forward(*plan, {.q = q, .k = q, .v = q, .o = out, .lse = row}, {}, workspace))
        return false;
    if (!kernel.backward(*plan,
                         {.q = q,
                          .k = q,
                          .v = q,
                          .o = out,
                          .lse = row,
                          .d_out = q,
                          .dq = view(dq, kDim),
                          .dk = view(dk, kDim),
                          .dv = view(dv, kDim)},
                         {}, {}, workspace))
        return false;
    if (result != nullptr) *result = o[5] + dq[7] + dk[9] + dv[11];
    return o[5] == o[5];
}

// exit() while other threads compile and run.
[[noreturn]] void exit_while_compiling(int number) {
    for (int thread = 0; thread < 3; ++thread)
        std::thread([thread] {
            for (int i = 0;; ++i)
                if (const auto kernel = compiled(i * 3 + thread)) (void)runs(*kernel);
        }).detach();
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + 13 * number));
    std::exit(0);
}

CompileOptions nvrtc_options() {
    CompileOptions options;
    options.backward = false;
    options.cache.disk = options.cache.memory = false;
    return options;
}

// Three threads that compile until NVRTC refuses, and some time of it. Only once NVRTC has compiled
// something are all its finalizers registered.
void start_nvrtc_compiles(int number) {
    // Runs after NVRTC's finalizers: for what threads do with what those have destroyed.
    std::atexit([] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); });
    if (!compile_offline(text_of(0), nvrtc_options(), kArch)) std::_Exit(2);
    for (int thread = 0; thread < 3; ++thread)
        std::thread([thread] {
            int i = thread;
            while (compile_offline(text_of(i), nvrtc_options(), kArch))
                i += 3;
        }).detach();
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + 13 * number));
}

[[noreturn]] void exit_while_nvrtc_compiles(int number) {
    start_nvrtc_compiles(number);
    std::exit(0);
}

// exit() by a thread that compiles, from its log.
[[noreturn]] void exit_in_log_of_nvrtc_compile(int number) {
    start_nvrtc_compiles(number);
    CompileOptions options = nvrtc_options();
    options.log.write = [](void*, LogLevel, std::string_view) { std::exit(0); };
    (void)compile_offline(text_of(1), options, kArch);
    std::_Exit(7);
}

// The child of a fork has none of the threads that compile, and waits for none.
[[noreturn]] void exit_of_child_while_nvrtc_compiles(int number) {
    start_nvrtc_compiles(number);
    const pid_t process = fork();
    if (process == 0) {
        alarm(5);
        std::exit(0);
    }
    int status = 0;
    std::_Exit(waitpid(process, &status, 0) == process && status == 0 ? 0 : 6);
}

// A kernel that outlives main, run by a destructor and by an exit handler.
Kernel& last_kernel() {
    static Kernel kernel;
    return kernel;
}
struct RunsAtExit {
    ~RunsAtExit() {
        if (!runs(last_kernel())) std::_Exit(3);
    }
};
int run_at_exit(int number) {
    if (number % 2 == 0) {
        last_kernel();
        static const RunsAtExit destructor;
    }
    const auto kernel = compiled(number);
    if (!kernel || !runs(*kernel)) return 2;
    last_kernel() = *kernel;
    if (number % 2 != 0)
        std::atexit([] {
            if (!runs(last_kernel())) std::_Exit(4);
        });
    return 0;
}

// A child of a process whose threads have run kernels runs one, with the same bits.
int fork_after_threads(int number) {
    const auto kernel = compiled(number);
    float before = 0;
    if (!kernel || !runs(*kernel, &before)) return 2;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            for (int again = 0; again < 10; ++again)
                (void)runs(*kernel);
        });
    for (std::thread& thread : threads)
        thread.join();
    for (int child = 0; child < 5; ++child) {
        const pid_t process = fork();
        if (process == 0) {
            alarm(kSeconds / 2);
            float after = 0;
            const bool ran = runs(*kernel, &after);
            std::_Exit(ran && std::bit_cast<int>(before) == std::bit_cast<int>(after) ? 0 : 5);
        }
        int status = 0;
        if (waitpid(process, &status, 0) != process || status != 0) return 6;
    }
    return 0;
}

bool has_opened_nvrtc() {
    const auto is_nvrtc = [](dl_phdr_info* object, std::size_t, void*) {
        return std::strstr(object->dlpi_name, "libnvrtc") != nullptr ? 1 : 0;
    };
    return dl_iterate_phdr(is_nvrtc, nullptr) != 0;
}

// A process that finds its kernels on disk, where another has left them, does not open NVRTC.
int found_without_nvrtc(int number) {
    char folder[] = "/tmp/flexc-process-XXXXXX";
    if (mkdtemp(folder) == nullptr) return 2;
    CompileOptions options = nvrtc_options();
    options.cache.disk = true;
    options.cache.directory = folder;
    const pid_t process = fork();
    if (process == 0) {
        const auto made = compile_offline(text_of(number), options, kArch);
        std::_Exit(made && !made->cached && has_opened_nvrtc() ? 0 : 3);
    }
    int status = 0;
    const bool is_made = waitpid(process, &status, 0) == process && status == 0;
    const auto found = compile_offline(text_of(number), options, kArch);
    std::filesystem::remove_all(folder);
    return is_made && found && found->cached && !has_opened_nvrtc() ? 0 : 4;
}

int child(const std::string& mode, int number) {
    setenv("FLEXC_THREADS", "4", 1);
    alarm(kSeconds);
    if (mode == "exit_while_compiling") exit_while_compiling(number);
    if (mode == "exit_while_nvrtc_compiles") exit_while_nvrtc_compiles(number);
    if (mode == "exit_in_log_of_nvrtc_compile") exit_in_log_of_nvrtc_compile(number);
    if (mode == "exit_of_child_while_nvrtc_compiles") exit_of_child_while_nvrtc_compiles(number);
    if (mode == "found_without_nvrtc") return found_without_nvrtc(number);
    if (mode == "run_at_exit") return run_at_exit(number);
    return fork_after_threads(number);
}

} // namespace

int main(int count, char** arguments) {
    if (count == 3) return child(arguments[1], std::atoi(arguments[2]));
    if (count != 2) return 1;
    if (std::strstr(arguments[1], "nvrtc") != nullptr)
        if (const auto can = supports(text_of(0), nvrtc_options(), kArch); !can) {
            std::printf("%s\n", can.error().message.c_str());
            return kSkipped;
        }
    int failed = 0;
    const int times = std::strcmp(arguments[1], "found_without_nvrtc") == 0 ? 1 : 12;
    for (int number = 0; number < times; ++number) {
        std::string which = std::to_string(number);
        char* of_child[] = {arguments[0], arguments[1], which.data(), nullptr};
        pid_t process = 0;
        int status = -1;
        if (posix_spawn(&process, "/proc/self/exe", nullptr, nullptr, of_child, environ) == 0)
            waitpid(process, &status, 0);
        if (status != 0) {
            ++failed;
            std::printf("%s %d: status %#x\n", arguments[1], number, static_cast<unsigned>(status));
        }
    }
    std::printf("%s: %d of %d failed\n", arguments[1], failed, times);
    return failed == 0 ? 0 : 1;
}
