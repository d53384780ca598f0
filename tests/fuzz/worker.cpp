#include "worker.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <new>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace flexc::fuzz {

namespace {

std::uint64_t accepted = 0;

double seconds(clockid_t clock) {
    timespec time{};
    if (::clock_gettime(clock, &time) != 0) return 0;
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

[[noreturn]] void work(const Target& target, std::uint64_t first, const Inputs& inputs,
                       Progress& progress) {
    std::string input;
    for (std::uint64_t index = first; inputs(index, input); ++index) {
        const double start = seconds(CLOCK_PROCESS_CPUTIME_ID);
        progress.started = start;
        progress.index = index;
        target.run(input);
        const double now = seconds(CLOCK_PROCESS_CPUTIME_ID);
        if (now - start > progress.slowest_seconds) {
            progress.slowest_seconds = now - start;
            progress.slowest = index;
        }
        progress.accepted = accepted;
        progress.used = now;
    }
    std::exit(0); // a sanitizer looks for leaks here
}

std::uint64_t resident_bytes(pid_t worker) {
    std::ifstream file("/proc/" + std::to_string(worker) + "/statm");
    std::uint64_t total = 0, resident = 0;
    file >> total >> resident;
    return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// The end of what a worker wrote into `file`; a report of a sanitizer from its start.
std::string written(int file) {
    constexpr off_t kMost = 1 << 20;
    const off_t size = ::lseek(file, 0, SEEK_END);
    std::string text(static_cast<std::size_t>(std::min(size, kMost)), '\0');
    const ssize_t count = ::pread(file, text.data(), text.size(), std::max<off_t>(0, size - kMost));
    text.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    constexpr std::size_t kShown = 12'000;
    std::size_t start = std::string::npos;
    for (const char* word : {"runtime error: ", "==ERROR: ", "fuzz: "})
        start = std::min(start, text.find(word));
    if (start != std::string::npos) {
        const auto line = text.rfind('\n', start);
        return text.substr(line == std::string::npos ? 0 : line + 1, kShown);
    }
    return text.size() > kShown ? text.substr(text.size() - kShown) : text;
}

std::string describe(int status) {
    if (WIFEXITED(status))
        return WEXITSTATUS(status) == 0
                   ? ""
                   : "the process ended with status " + std::to_string(WEXITSTATUS(status));
    return std::string("the process was ended by signal ") + ::strsignal(WTERMSIG(status));
}

// Ends a worker so that a sanitizer can still say where it was.
int end(pid_t worker) {
    int status = 0;
    ::kill(worker, SIGABRT);
    for (int i = 0; i < 500; ++i) {
        if (::waitpid(worker, &status, WNOHANG) == worker) return status;
        ::usleep(20'000);
    }
    ::kill(worker, SIGKILL);
    ::waitpid(worker, &status, 0);
    return status;
}

// Waits for a worker; what it did wrong, if anything.
std::string watch(pid_t worker, const Progress& progress, const Limits& limits) {
    clockid_t clock{};
    if (::clock_getcpuclockid(worker, &clock) != 0) clock = CLOCK_REALTIME;
    std::uint64_t seen = ~std::uint64_t{0};
    double since = 0;
    while (true) {
        int status = 0;
        if (::waitpid(worker, &status, WNOHANG) == worker) return describe(status);
        ::usleep(10'000);
        const double now = seconds(CLOCK_MONOTONIC), cpu = seconds(clock);
        if (progress.index != seen) {
            seen = progress.index;
            since = now;
        }
        std::string failure;
        if (cpu - progress.started > limits.cpu_seconds && cpu > progress.used)
            failure = "an input took more than " + std::to_string(limits.cpu_seconds) +
                      " s of processor time";
        // Nothing moves: it waits for something that will not come.
        else if (now - since > 60 + 20 * limits.cpu_seconds)
            failure = "an input has not ended for " + std::to_string(now - since) + " s";
        else if (resident_bytes(worker) > limits.memory_bytes)
            failure = "an input made the process larger than " +
                      std::to_string(limits.memory_bytes >> 20) + " MiB";
        if (failure.empty()) continue;
        end(worker);
        return failure;
    }
}

} // namespace

void fail(const std::string& message) {
    std::fprintf(stderr, "fuzz: %s\n", message.c_str());
    std::abort();
}

void count_accepted() { ++accepted; }
std::uint64_t accepted_count() { return accepted; }

Outcome run_inputs(const Target& target, std::uint64_t first, const Inputs& inputs,
                   const Limits& limits) {
    void* shared = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const int log = ::memfd_create("fuzz", MFD_CLOEXEC);
    if (shared == MAP_FAILED || log < 0) fail(std::strerror(errno));
    auto* progress = new (shared) Progress{.index = first};
    std::fflush(nullptr);
    const pid_t worker = ::fork();
    if (worker < 0) fail(std::strerror(errno));
    if (worker == 0) {
        ::dup2(log, STDERR_FILENO);
        const rlimit no_core{};
        ::setrlimit(RLIMIT_CORE, &no_core);
        work(target, first, inputs, *progress);
    }
    Outcome outcome;
    outcome.failure = watch(worker, *progress, limits);
    if (!outcome.failure.empty()) outcome.report = written(log);
    outcome.progress = *progress;
    ::close(log);
    ::munmap(shared, sizeof(Progress));
    return outcome;
}

} // namespace flexc::fuzz
