// flexc tune: times every way in which the forward kernel of a mod can divide its work, and keeps
// the fastest in the cache.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <thread>

#include <nlohmann/json.hpp>

#include "flexc/bench_case.h"
#include "flexc/command.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

constexpr std::size_t kFinalists = 4;
constexpr int kRounds = 3;
// A schedule that is faster by less than this may only have been lucky.
constexpr double kLeastGain = 0.01;

struct TuneOptions {
    BenchOption bench;
    bool forget = false, json = false;
};

struct Candidate {
    std::string schedule;
    double milliseconds = 0;
};

CompileOptions with_schedule(const BenchCase& bench, const std::string& schedule) {
    auto options = bench.mod.options;
    options.backward = false;
    options.schedule = schedule;
    return options;
}

// All of them, on all cores, into the caches.
void compile_all(const BenchCase& bench, const std::vector<std::string>& schedules) {
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
        for (auto i = next++; i < schedules.size(); i = next++) {
            (void)compile(bench.mod.text, with_schedule(bench, schedules[i]));
        }
    };
    const auto cores = std::max(1U, std::thread::hardware_concurrency());
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < cores; ++i) {
        threads.emplace_back(work);
    }
}

double time_of(AttentionCall& call, const BenchCase& bench, const std::string& schedule) {
    call.use(value_of(compile(bench.mod.text, with_schedule(bench, schedule))));
    return rested_time(call, run_forward, 1);
}

// The first stays first: it is what the others must beat.
std::vector<Candidate> measure(const BenchCase& bench, const std::vector<std::string>& schedules) {
    compile_all(bench, schedules);
    auto call = make_call(
        bench, value_of(compile(bench.mod.text, with_schedule(bench, schedules.front()))), false);
    std::vector<Candidate> candidates;
    for (const auto& schedule : schedules) {
        candidates.push_back({schedule, time_of(call, bench, schedule)});
    }
    const auto faster = [](const Candidate& one, const Candidate& other) {
        return one.milliseconds < other.milliseconds;
    };
    std::sort(candidates.begin() + 1, candidates.end(), faster);
    // A chip also changes while it gets warm: those that matter are timed again in turns.
    const auto count = std::min(candidates.size(), kFinalists + 1);
    std::vector<std::vector<double>> times(count);
    for (int round = 0; round < kRounds; ++round) {
        for (std::size_t i = 0; i < count; ++i) {
            times[i].push_back(time_of(call, bench, candidates[i].schedule));
        }
    }
    for (std::size_t i = 0; i < count; ++i) {
        candidates[i].milliseconds = median(times[i]);
    }
    std::sort(candidates.begin() + 1, candidates.begin() + static_cast<std::ptrdiff_t>(count),
              faster);
    return candidates;
}

void forget(const BenchCase& bench, bool prints_json) {
    require(keep_schedule(bench.mod.text, with_schedule(bench, "")));
    if (prints_json) {
        print_json({{"kept", nullptr}});
    } else {
        print(stdout, "flexc chooses for this program again\n");
    }
}

void print_table(const std::vector<Candidate>& candidates, bool keeps) {
    print(stdout, "{:>10}  {:>7}\n", "ms", "gain");
    for (const auto& candidate : candidates) {
        print(stdout, "{:10.4f}  {:6.1f}%  {}{}\n", candidate.milliseconds,
              100 * (candidates.front().milliseconds / candidate.milliseconds - 1),
              candidate.schedule, &candidate == &candidates.front() ? "  (flexc's choice)" : "");
    }
    print(stdout, "{}\n",
          keeps
              ? "kept: " + candidates[1].schedule
              : formatted("flexc's choice stays: nothing is faster by {:.0f} %", 100 * kLeastGain));
}

void run(const TuneOptions& options) {
    const auto limit = time_limit(options.bench, options.json);
    const auto bench = make_case(options.bench);
    if (options.forget) {
        forget(bench, options.json);
        return;
    }
    const auto schedules = value_of(forward_schedules(bench.mod.text, with_schedule(bench, "")));
    if (schedules.empty()) {
        fail("the forward kernel of this program has only one schedule on this device: there is "
             "nothing to tune (`flexc explain MOD --stage plan` says which kernel it is)");
    }
    const auto candidates = measure(bench, schedules);
    const bool keeps = candidates.size() > 1 &&
                       candidates[1].milliseconds < candidates[0].milliseconds / (1 + kLeastGain);
    // flexc's choice needs no entry; what an earlier call kept goes.
    require(
        keep_schedule(bench.mod.text, with_schedule(bench, keeps ? candidates[1].schedule : "")));
    if (!options.json) {
        print_table(candidates, keeps);
        return;
    }
    nlohmann::json value{{"kept", keeps ? nlohmann::json(candidates[1].schedule) : nullptr},
                         {"default_ms", candidates[0].milliseconds},
                         {"best_ms", candidates[keeps ? 1 : 0].milliseconds}};
    for (const auto& candidate : candidates) {
        value["schedules"].push_back(
            {{"schedule", candidate.schedule}, {"ms", candidate.milliseconds}});
    }
    print_json(value);
}

} // namespace

void add_tune(CommandLine program) {
    auto options = std::make_shared<TuneOptions>();
    auto command = program.command(
        "tune", "Find the fastest schedule of a mod's forward kernel and keep it in the cache",
        "flexc tune alibi --shape 2,16,16,8192,8192,128 --dtype bf16");
    add_bench_options(command, options->bench);
    command.flag("--forget", options->forget, "Let flexc choose again");
    command.json_flag(options->json);
    command.on_run([options] { run(*options); });
}

} // namespace flexc::cli
