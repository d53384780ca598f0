// flexc bench: median times of a mod on made-up tensors.
#include <algorithm>
#include <memory>
#include <sstream>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "flexc/bench_case.h"
#include "flexc/bench_ranks.h"
#include "flexc/command.h"
#include "flexc/compile_options.h"
#include "flexc/mod_option.h"
#include "flexc/peak.h"
#include "flexc/ranks.h"
#include "flexc/stopwatch.h"
#include "flexc/visible_fraction.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

struct BenchOptions {
    BenchOption bench;
    ChoiceOption choice;
    RankOption ranks;
    std::string schedule, output_type = "input";
    bool backward = false, rested = false, json = false;
};

struct CompileTimes {
    double cold_ms = 0;
    std::optional<double> cached_ms; // from the disk cache
};

// Cold without any cache; then once to fill the disk cache and once from it.
CompileTimes time_compiles(const std::string& text, CompileOptions options) {
    CompileTimes times;
    options.cache = {.memory = false, .disk = false};
    options.log = {};
    times.cold_ms = milliseconds([&] { value_of(compile(text, options)); });
    options.cache.disk = true;
    value_of(compile(text, options));
    Kernel cached;
    const double ms = milliseconds([&] { cached = value_of(compile(text, options)); });
    if (cached.from_cache()) {
        times.cached_ms = ms;
    }
    return times;
}

// What a call takes of the host while the device works; none where the host is the device.
template <typename Work> std::optional<double> host_time(const AttentionCall& call, Work work) {
    if (call.kernel().device().kind == Device::Kind::cpu) {
        return std::nullopt;
    }
    std::vector<double> times;
    for (int i = 0; i < 101; ++i) {
        call.synchronize(); // no launch waits for room in the stream
        times.push_back(milliseconds([&] { require(work(call)); }));
    }
    call.synchronize();
    return median(std::move(times));
}

nlohmann::json or_null(const std::optional<double>& value) {
    return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

void add_rate(nlohmann::json& value, const std::string& prefix, double ms,
              const ProblemShape& shape, bool backward, const VisibleFraction& visible,
              const std::optional<double>& peak) {
    std::optional<double> rate, of_peak;
    if (visible.value) {
        rate = tera_operations(shape, backward, *visible.value) / (ms * 1e-3);
        if (peak) {
            of_peak = *rate / *peak;
        }
    }
    value[prefix + "tflops"] = or_null(rate);
    value[prefix + "fraction_of_peak"] = or_null(of_peak);
}

// One line on stderr that says what is going on, and is gone in the end.
class Progress {
  public:
    explicit Progress(bool is_wanted) : is_seen_(is_wanted && ::isatty(STDERR_FILENO) == 1) {}
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    ~Progress() { say(""); }

    void say(std::string_view what) const {
        if (is_seen_) {
            print(stderr, "\r\033[K{}", what);
            std::fflush(stderr);
        }
    }

  private:
    bool is_seen_;
};

std::string line_of(const nlohmann::json& value, const std::string& prefix) {
    const auto pass = prefix.empty() ? std::string("forward") : std::string("backward");
    auto text = formatted("{} {:.4g} ms", pass, value[pass + "_ms"].get<double>());
    if (const auto& rate = value[prefix + "tflops"]; !rate.is_null()) {
        text += formatted(", {:.4g} TFLOP/s", rate.get<double>());
    }
    if (const auto& part = value[prefix + "fraction_of_peak"]; !part.is_null()) {
        text += formatted(" ({:.0f} % of peak)", 100 * part.get<double>());
    }
    return text;
}

// For people: what is asked most often.
void print_summary(const nlohmann::json& value) {
    print(stdout, "{}: {}", value["device"].get<std::string>(), line_of(value, ""));
    if (!value["backward_ms"].is_null()) {
        print(stdout, "; {}", line_of(value, "backward_"));
    }
    if (const auto& visible = value["visible_fraction"]; !visible.is_null()) {
        print(stdout, "; {:.4g} % visible", 100 * visible.get<double>());
    }
    print(stdout, "; compile {:.4g} ms", value["compile_ms"].get<double>());
    if (const auto& cached = value["cached_compile_ms"]; !cached.is_null()) {
        print(stdout, " ({:.3g} ms cached)", cached.get<double>());
    }
    print(stdout, "\n");
}

// Ranks take turns with one of them, and wait for each other: there are no rests and no flushes.
void run_ranks(const BenchOptions& options) {
    if (options.rested || !options.schedule.empty()) {
        fail_usage("--ranks is without --rested and --schedule");
    }
    const auto device = device_of(options.ranks, options.bench.device);
    auto option = options.bench;
    option.device = "cpu";
    auto bench = make_case(option);
    bench.mod.options.device = device;
    bench.mod.options.backward = options.backward;
    apply(options.choice, bench.mod.options);
    const auto output_type = parse_output_type(options.output_type);
    const auto communicator = open_ranks(options.ranks, bench.mod.options);
    const bool is_first = communicator->rank() == 0;
    const Progress progress(is_first);
    progress.say(formatted("timing {} ranks, and one alone ...", communicator->ranks()));
    auto value = bench_on_ranks(
        bench, {.backward = options.backward, .output_type = output_type, .ranks = options.ranks},
        communicator);
    if (!is_first) {
        return;
    }
    value["shape"] = options.bench.shape;
    for (const auto& [prefix, ms] : {std::pair{"", "forward_ms"}, {"backward_", "backward_ms"}}) {
        if (value.contains(ms)) {
            add_rate(value, prefix, value[ms].get<double>(), bench.problem, *prefix != '\0',
                     {value["visible_fraction"].is_null()
                          ? std::nullopt
                          : std::optional(value["visible_fraction"].get<double>()),
                      ""},
                     std::nullopt);
        }
    }
    progress.say("");
    options.json ? print_json(value) : print_ranked_summary(value);
}

void run(const BenchOptions& options) {
    const auto limit = time_limit(options.bench, options.json);
    if (options.ranks.ranks != "one") {
        run_ranks(options);
        return;
    }
    auto bench = make_case(options.bench);
    open_ranks(options.ranks, bench.mod.options); // refuses an exchange
    const Progress progress(true);
    const auto& problem = bench.problem;
    auto& compile_options = bench.mod.options;
    compile_options.backward = options.backward;
    apply(options.choice, compile_options);
    compile_options.schedule = options.schedule;
    const auto output_type = parse_output_type(options.output_type);
    progress.say("compiling ...");
    const auto compile_times = time_compiles(bench.mod.text, compile_options);

    progress.say("filling tensors ...");
    auto call = make_call(bench, value_of(compile(bench.mod.text, compile_options)),
                          options.backward, output_type);
    const auto device = call.kernel().device();
    const auto time = [&](Result<void> (*work)(void*)) {
        constexpr int kLoads = 6;
        return options.rested ? rested_time(call, work, kLoads) : median_time(call, work);
    };
    progress.say("timing the forward ...");
    const double forward_ms = time(run_forward);
    const auto launch_ms = host_time(call, [](const AttentionCall& one) { return one.forward(); });
    std::optional<double> backward_ms;
    if (options.backward) {
        progress.say("timing the backward ...");
        backward_ms =
            time([](void* user) { return static_cast<AttentionCall*>(user)->backward(); });
    }
    std::optional<double> map_ms;
    if (call.block_mask_bytes() > 0) {
        map_ms =
            time([](void* user) { return static_cast<AttentionCall*>(user)->update_block_mask(); });
    }
    std::optional<double> update_ms, update_host_ms, update_on_device_ms;
    if (!options.bench.requests.empty()) {
        update_ms =
            time([](void* user) { return static_cast<AttentionCall*>(user)->update_lengths(); });
        update_host_ms =
            host_time(call, [](const AttentionCall& one) { return one.update_lengths(); });
    }
    if (update_host_ms) {
        call.copy_lengths();
        update_on_device_ms = time([](void* user) {
            return static_cast<AttentionCall*>(user)->update_lengths_on_device();
        });
    }
    std::vector<double> plan_times;
    for (int i = 0; i < 11; ++i) {
        plan_times.push_back(milliseconds([&] {
            value_of(call.make_plan());
            call.synchronize();
        }));
    }
    progress.say("counting what is visible ...");
    const auto block_mask_bytes = call.block_mask_bytes();
    const auto kernels = call.kernel().kernels();
    const std::vector<KernelInfo> infos(kernels.begin(), kernels.end());
    const auto visible = visible_fraction(bench, call);
    const auto peak = peak_tera_operations(device, problem.dtype);

    nlohmann::json value{{"device", describe(device)},
                         {"dtype", name(problem.dtype)},
                         {"kv_dtype", name(problem.kv_dtype.value_or(problem.dtype))},
                         {"shape", options.bench.shape},
                         {"forward_ms", forward_ms},
                         {"backward_ms", or_null(backward_ms)},
                         {"launch_ms", or_null(launch_ms)},
                         {"plan_ms", median(plan_times)},
                         {"update_ms", or_null(update_ms)},
                         {"update_host_ms", or_null(update_host_ms)},
                         {"update_on_device_ms", or_null(update_on_device_ms)},
                         {"map_ms", or_null(map_ms)},
                         {"block_mask_bytes", block_mask_bytes},
                         {"compile_ms", compile_times.cold_ms},
                         {"cached_compile_ms", or_null(compile_times.cached_ms)},
                         {"visible_fraction", or_null(visible.value)},
                         {"visible_fraction_method", visible.method},
                         {"peak_tflops", or_null(peak)}};
    add_rate(value, "", forward_ms, problem, false, visible, peak);
    if (backward_ms) {
        add_rate(value, "backward_", *backward_ms, problem, true, visible, peak);
    }
    for (const auto& info : infos) {
        value["kernels"].push_back(
            {{"name", info.name}, {"registers", info.registers}, {"reason", info.reason}});
        if (!info.schedule.empty()) {
            value["kernels"].back()["schedule"] = info.schedule;
        }
    }
    for (const auto& buffer : bench.buffers) {
        value["fills"][buffer.info.name] = buffer.fill;
    }
    progress.say("");
    options.json ? print_json(value) : print_summary(value);
}

} // namespace

void add_bench(CommandLine program) {
    auto options = std::make_shared<BenchOptions>();
    auto command =
        program.command("bench", "Median times of a mod on made-up tensors",
                        "flexc bench alibi --shape 2,16,16,8192,8192,128 --dtype bf16 --backward");
    add_bench_options(command, options->bench);
    command.flag("--backward", options->backward, "Time the backward too");
    command.flag("--rested", options->rested,
                 "Short loads with rests between them, whose times repeat, not one of 60 ms");
    add_choice_options(command, options->choice);
    add_rank_options(command, options->ranks);
    command.option("--schedule", options->schedule,
                   "How the forward kernel divides its work; `flexc tune` shows those there are");
    command.option("--output-type", options->output_type, "Of o: input (the type of q) or f32",
                   {.usual = {"input", "f32"}});
    command.json_flag(options->json);
    command.on_run([options] { run(*options); });
}

} // namespace flexc::cli
