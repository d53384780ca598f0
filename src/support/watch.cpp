#include "support/watch.h"

#include <cstdio>
#include <memory>
#include <system_error>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include "support/text.h"

namespace flexc {

CancelToken CancelToken::create() {
    return guarded_or(CancelToken(), [] {
        CancelToken token;
        token.flag_ = std::make_shared<std::atomic<bool>>(false);
        return token;
    });
}
void CancelToken::cancel() const {
    if (flag_) flag_->store(true);
}
bool CancelToken::is_cancelled() const { return flag_ && flag_->load(); }

namespace support {

namespace {

// Limit on abandoned runs, each of which may still use a core and gigabytes.
constexpr int kMostAbandoned = 4;

} // namespace

std::uint64_t memory_in_use() {
    struct Close {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    const std::unique_ptr<std::FILE, Close> file(std::fopen("/proc/self/statm", "re"));
    unsigned long long whole = 0, resident = 0, of_files = 0;
    if (!file || std::fscanf(file.get(), "%llu %llu %llu", &whole, &resident, &of_files) != 3)
        return 0;
    const long page = ::sysconf(_SC_PAGESIZE);
    return resident > of_files && page > 0
               ? (resident - of_files) * static_cast<std::uint64_t>(page)
               : 0;
}

Watch::Watch(const CompileLimits& limits, CancelToken cancel, std::shared_ptr<Runs> runs)
    : limits_(limits), cancel_(std::move(cancel)), runs_(std::move(runs)),
      stopped_(std::make_shared<std::atomic<bool>>(false)) {
    if (limits_.memory_bytes > 0) memory_at_start_ = memory_in_use();
}

bool Watch::has_room() const {
    const int processors = static_cast<int>(std::thread::hardware_concurrency());
    return runs_ && processors > 1 && runs_->going < processors;
}

void Watch::start_thread(std::function<void()> work) {
    constexpr std::size_t kStackBytes = std::size_t{16} << 20;
    auto owned = std::make_unique<std::function<void()>>(std::move(work));
    const auto run = [](void* given) -> void* {
        const std::unique_ptr<std::function<void()>> own(
            static_cast<std::function<void()>*>(given));
        (*own)();
        return nullptr;
    };
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_t thread;
    const int failed = pthread_create(&thread, &attributes, run, owned.get());
    pthread_attr_destroy(&attributes);
    if (failed != 0) throw std::system_error(failed, std::generic_category());
    (void)owned.release(); // the thread's
}

bool Watch::watches() const { return limits_.seconds > 0 || limits_.memory_bytes > 0 || cancel_; }

Result<void> Watch::check() const {
    if (cancel_.is_cancelled()) return Error{ErrorCode::cancelled, "the compile was cancelled"};
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start_;
    if (limits_.seconds > 0 && taken.count() > limits_.seconds)
        return stopped(formatted("the compile was stopped after {:g} seconds: make the program "
                                 "smaller, or raise the limit (CompileLimits::seconds, "
                                 "--max-compile-seconds)",
                                 limits_.seconds));
    if (limits_.memory_bytes > 0) {
        const std::uint64_t now = memory_in_use();
        if (now > memory_at_start_ && now - memory_at_start_ > limits_.memory_bytes)
            return stopped(formatted("the compile was stopped, as the process grew by more than {} "
                                     "MiB: make the program smaller, or raise the limit "
                                     "(CompileLimits::memory_bytes, --max-compile-memory)",
                                     limits_.memory_bytes >> 20));
    }
    return {};
}

Error Watch::stopped(std::string message) const {
    stopped_->store(true);
    return {ErrorCode::limit, std::move(message)};
}

Result<void> Watch::begin() const {
    if (auto checked = check(); !checked) return checked;
    if (runs_->abandoned < kMostAbandoned) return {};
    return Error{ErrorCode::limit,
                 formatted("{} compiles that were stopped before have not ended yet: try again "
                           "later",
                           kMostAbandoned)};
}

} // namespace support
} // namespace flexc
