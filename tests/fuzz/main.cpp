// flexc_fuzz TARGET: inputs from a corpus, changed at random, until the time is up.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>

#include "support/text.h"
#include "worker.h"

#if defined(__SANITIZE_ADDRESS__)
// An abort gets a stack too, and what asks for gigabytes is a fault, not a bad day.
#define FLEXC_READ_BY_RUNTIME extern "C" __attribute__((visibility("default")))
FLEXC_READ_BY_RUNTIME const char* __asan_default_options();
const char* __asan_default_options() {
    return "handle_abort=1:max_allocation_size_mb=3000:detect_stack_use_after_return=0";
}
FLEXC_READ_BY_RUNTIME const char* __ubsan_default_options();
const char* __ubsan_default_options() { return "print_stacktrace=1"; }
#endif

namespace flexc::fuzz {

namespace {

// Unoptimised and with sanitizers everything takes that much longer.
#if defined(__SANITIZE_ADDRESS__)
constexpr double kSlowness = 10;
#else
constexpr double kSlowness = 1;
#endif
constexpr std::uint64_t kMemory = std::uint64_t{2} << 30;
// A worker ends after that many inputs, and another takes over: caches do not grow for hours.
constexpr std::uint64_t kInputsOfWorker = 20'000;

struct Settings {
    const Target* target = nullptr;
    double seconds = 10;
    std::uint64_t seed = 1, first = 0, runs = ~std::uint64_t{0};
    std::size_t failures = 20; // different ones after which it stops
    std::string input, folder = FLEXC_BINARY_DIR "/fuzz";
    bool minimize = false;
};

double now() {
    using Clock = std::chrono::steady_clock;
    return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

// The corpus as it is, then changes of it: input `index` of a seed is always the same.
std::string input_of(const Settings& settings, const Corpus& corpus, std::uint64_t index) {
    if (index < corpus.size()) return corpus[index];
    Random random(settings.seed + (index << 20));
    return settings.target->mutate(random.pick(corpus), corpus, random);
}

Outcome run_one(const Target& target, const std::string& input) {
    return run_inputs(target, 0,
                      [&](std::uint64_t index, std::string& text) {
                          text = input;
                          return index == 0;
                      },
                      {target.cpu_seconds * kSlowness, kMemory});
}

// What tells failures apart: the first of our own functions in the report, else what it says.
std::string kind_of(const Outcome& outcome) {
    const std::string& report = outcome.report;
    if (report.starts_with("fuzz: ")) return report.substr(0, report.find('\n'));
    for (std::size_t at = report.find("\n    #"); at != std::string::npos;
         at = report.find("\n    #", at + 1)) {
        const std::string line = report.substr(at + 1, report.find('\n', at + 1) - at - 1);
        const auto name = line.find(" in ");
        if (name == std::string::npos || line.find("flexc::fuzz") != std::string::npos) continue;
        if (line.find("flexc") != std::string::npos && line.find("tests/fuzz") == std::string::npos)
            return outcome.failure + line.substr(name);
    }
    return outcome.failure + report.substr(0, report.find('\n'));
}

// Of a report, as much as a screen holds; its file has all.
std::string start_of(const std::string& report) {
    constexpr std::size_t kShown = 2500;
    return report.size() <= kShown ? report
                                   : report.substr(0, report.rfind('\n', kShown)) + "\n...";
}

void save(const std::string& path, const std::string& bytes) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
}

// Leaves out what the failure does not need, in halves, quarters and so on.
std::string minimized(const Target& target, std::string input) {
    const Outcome whole = run_one(target, input);
    if (whole.failure.empty()) return input;
    const std::string kind = kind_of(whole);
    for (std::size_t size = std::max<std::size_t>(1, input.size() / 2);;) {
        bool smaller = false;
        for (std::size_t at = 0; at < input.size();) {
            std::string rest = input;
            rest.erase(at, size);
            if (kind_of(run_one(target, rest)) == kind) {
                input = std::move(rest);
                smaller = true;
            } else {
                at += size;
            }
        }
        if (size == 1 && !smaller) return input;
        size = std::max<std::size_t>(1, size / 2);
    }
}

int replay(const Settings& settings) {
    std::ifstream file(settings.input, std::ios::binary);
    if (!file) {
        std::fprintf(stderr, "cannot read %s\n", settings.input.c_str());
        return 2;
    }
    std::string input{std::istreambuf_iterator<char>(file), {}};
    if (settings.minimize) {
        input = minimized(*settings.target, std::move(input));
        std::fwrite(input.data(), 1, input.size(), stdout);
        return 0;
    }
    const Outcome outcome = run_one(*settings.target, input);
    std::printf("%s%s\n%.3f s of processor time\n", outcome.report.c_str(),
                outcome.failure.empty() ? "nothing is wrong" : outcome.failure.c_str(),
                outcome.progress.slowest_seconds);
    return outcome.failure.empty() ? 0 : 1;
}

int fuzz(const Settings& settings) {
    const Target& target = *settings.target;
    const Corpus corpus = target.corpus();
    const double deadline = now() + settings.seconds;
    std::set<std::string> kinds;
    std::uint64_t index = settings.first, accepted = 0, failures = 0, slowest = 0;
    const std::uint64_t last =
        settings.runs > ~settings.first ? ~std::uint64_t{0} : settings.first + settings.runs;
    double slowest_seconds = 0;
    while (index < last && now() < deadline && kinds.size() < settings.failures) {
        const std::uint64_t start = index, end = std::min(last, index + kInputsOfWorker);
        const Inputs inputs = [&](std::uint64_t at, std::string& input) {
            if (at >= end || now() >= deadline) return false;
            input = input_of(settings, corpus, at);
            return true;
        };
        const Outcome outcome =
            run_inputs(target, start, inputs, {target.cpu_seconds * kSlowness, kMemory});
        index = outcome.progress.index + 1;
        accepted += outcome.progress.accepted;
        if (outcome.progress.slowest_seconds > slowest_seconds) {
            slowest_seconds = outcome.progress.slowest_seconds;
            slowest = outcome.progress.slowest;
        }
        if (outcome.failure.empty()) continue;
        ++failures;
        const bool is_new = kinds.insert(kind_of(outcome)).second;
        const std::string path =
            formatted("{}/{}-{}-{}", settings.folder, target.name, settings.seed, index - 1);
        if (is_new) {
            save(path, input_of(settings, corpus, index - 1));
            save(path + ".txt", outcome.report);
        }
        std::printf("%s: %s\n", std::string(target.name).c_str(), outcome.failure.c_str());
        if (is_new)
            std::printf("%s\n  again: flexc_fuzz %s --input %s\n", start_of(outcome.report).c_str(),
                        std::string(target.name).c_str(), path.c_str());
        std::fflush(stdout);
    }
    std::printf("%s: seed %llu, %llu inputs, %llu accepted, %llu failures of %zu kinds; "
                "the slowest, --first %llu, took %.2f s\n",
                std::string(target.name).c_str(), static_cast<unsigned long long>(settings.seed),
                static_cast<unsigned long long>(index - settings.first),
                static_cast<unsigned long long>(accepted),
                static_cast<unsigned long long>(failures), kinds.size(),
                static_cast<unsigned long long>(slowest), slowest_seconds);
    return failures == 0 ? 0 : 1;
}

void usage() {
    std::puts("usage: flexc_fuzz TARGET [--seconds N] [--seed N] [--first N] [--runs N]\n"
              "       flexc_fuzz TARGET --input FILE [--minimize]\n\n"
              "Runs changed inputs in processes of their own until the time is up (10 s).\n"
              "A seed gives the same inputs everywhere; --first and --runs choose among them.\n"
              "What fails is kept in a file under --folder, and stops it after --failures kinds.\n"
              "With --input it runs that file alone; --minimize prints what is left of it when\n"
              "everything is left out that the failure does not need.\n\ntargets:");
    for (const Target* target : targets())
        std::printf("  %-10s %s\n", std::string(target->name).c_str(),
                    std::string(target->meaning).c_str());
}

std::optional<Settings> read_arguments(int count, char** arguments) {
    Settings settings;
    for (const Target* target : targets())
        if (count > 1 && target->name == arguments[1]) settings.target = target;
    if (settings.target == nullptr) return {};
    for (int i = 2; i < count; ++i) {
        const std::string_view name = arguments[i];
        if (name == "--minimize") {
            settings.minimize = true;
            continue;
        }
        if (++i == count) return {};
        const char* value = arguments[i];
        if (name == "--seconds")
            settings.seconds = std::strtod(value, nullptr);
        else if (name == "--seed")
            settings.seed = std::strtoull(value, nullptr, 10);
        else if (name == "--first")
            settings.first = std::strtoull(value, nullptr, 10);
        else if (name == "--runs")
            settings.runs = std::strtoull(value, nullptr, 10);
        else if (name == "--failures")
            settings.failures = std::strtoull(value, nullptr, 10);
        else if (name == "--input")
            settings.input = value;
        else if (name == "--folder")
            settings.folder = value;
        else
            return {};
    }
    return settings;
}

} // namespace

} // namespace flexc::fuzz

int main(int count, char** arguments) {
    const auto settings = flexc::fuzz::read_arguments(count, arguments);
    if (!settings) {
        flexc::fuzz::usage();
        return 2;
    }
    // Never the user's own; a call may leave out that it wants no cache.
    ::setenv("FLEXC_CACHE_DIR", (settings->folder + "/cache").c_str(), 0);
    return settings->input.empty() ? flexc::fuzz::fuzz(*settings) : flexc::fuzz::replay(*settings);
}
