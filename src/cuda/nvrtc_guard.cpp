#include "cuda/nvrtc_guard.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace flexc::cuda {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kLongestWait = std::chrono::seconds(10);
// Each registration takes 32 bytes that are never freed. A compile makes about 60.
constexpr int kMostRegistrations = 1000;

std::atomic<int> inside{0};
std::atomic<bool> is_ending{false};

void wait_for_guards() {
    static const Clock::time_point kEnd = Clock::now() + kLongestWait;
    is_ending.store(true);
    while (inside.load() > 0 && Clock::now() < kEnd)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

} // namespace

NvrtcGuard::NvrtcGuard() {
    ++inside;
    register_exit_handler();
}
NvrtcGuard::~NvrtcGuard() {
    register_exit_handler();
    --inside;
}

bool exit_has_begun() { return is_ending.load(); }

void register_exit_handler() {
    static std::atomic<int> registrations{0};
    if (exit_has_begun() || registrations.load() >= kMostRegistrations) return;
    // The child of a fork has no thread inside NVRTC.
    if (registrations++ == 0) pthread_atfork(nullptr, nullptr, [] { inside.store(0); });
    std::atexit(wait_for_guards);
}

} // namespace flexc::cuda
