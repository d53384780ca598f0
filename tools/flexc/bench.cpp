// flexc bench: median times of a mod on made-up tensors.
#include <algorithm>
#include <chrono>
#include <memory>
#include <sstream>

#include <nlohmann/json.hpp>

#include "flexc/attention_call.h"
#include "flexc/command.h"
#include "flexc/fill.h"
#include "flexc/mod_option.h"
#include "flexc/peak.h"
#include "flexc/visible_fraction.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

struct BenchOptions {
    ModOption mod;
    std::string shape, dtype = "bf16", device = "auto";
    std::string forward_kernel = "auto", backward_kernel = "auto";
    std::vector<std::string> dims, fills;
    std::optional<double> scale;
    bool backward = false, deterministic = false, json = false;
};

ProblemShape parse_shape(const BenchOptions& options) {
    std::vector<std::int64_t> counts;
    std::stringstream stream(options.shape);
    for (std::string part; std::getline(stream, part, ',');) {
        counts.push_back(parse_count(part, "--shape " + options.shape));
    }
    if (counts.size() != 6 && counts.size() != 7) {
        fail_usage(formatted("--shape '{}': expected B,H,H_KV,Q,KV,D or B,H,H_KV,Q,KV,D,DV",
                             options.shape));
    }
    if (counts[1] % counts[2] != 0) {
        fail_usage(formatted("--shape '{}': H_KV must divide H", options.shape));
    }
    if (std::max(counts[5], counts.back()) > 256) {
        fail_usage(formatted("--shape '{}': D and DV go from 1 to 256", options.shape));
    }
    return {.sizes = {.batch = counts[0],
                      .heads = counts[1],
                      .kv_heads = counts[2],
                      .q_len = counts[3],
                      .kv_len = counts[4]},
            .head_dim = static_cast<int>(counts[5]),
            .head_dim_v = static_cast<int>(counts.back()),
            .dtype = parse_element_type(options.dtype)};
}

struct BufferContents {
    BufferInfo info;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
    std::string fill;
};

std::vector<BufferContents> make_buffers(const BenchOptions& options, const Signature& signature,
                                         const ProblemShape& problem) {
    auto sizes = size_names(problem);
    for (const auto& text : options.dims) {
        const auto [dim, count] = split_assignment(text, "--dim");
        if (!sizes.emplace(dim, parse_count(count, "--dim " + dim)).second) {
            fail_usage(formatted("--dim {}: {} is given by --shape", text, dim));
        }
    }
    std::map<std::string, std::string> fills;
    for (const auto& text : options.fills) {
        const auto [buffer, spec] = split_assignment(text, "--fill");
        fills[buffer] = spec;
    }
    std::vector<BufferContents> buffers;
    for (const auto& info : signature.buffers) {
        BufferContents buffer{.info = info, .shape = buffer_shape(info, sizes)};
        const auto given = fills.extract(info.name);
        buffer.fill = given.empty() ? default_fill(info) : given.mapped();
        buffer.bytes =
            make_contents(parse_fill(buffer.fill), info.dtype, buffer.shape, 100 + buffers.size());
        buffers.push_back(std::move(buffer));
    }
    if (!fills.empty()) {
        fail_usage(
            formatted("--fill {}: the program has no buffer of this name", fills.begin()->first));
    }
    return buffers;
}

double median(std::vector<double> values) {
    if (values.empty()) {
        fail("the device gave no times");
    }
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

template <typename Work> double milliseconds(Work work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
}

// Enough repeats for a steady median, within about half a second.
double median_time(const AttentionCall& call, Result<void> (*work)(void*)) {
    auto* user = const_cast<AttentionCall*>(&call);
    const auto measure = [&](int repeats) {
        return value_of(Timer::measure(call.kernel().device(), repeats, work, user));
    };
    require(work(user));
    call.synchronize();
    const auto first = median(measure(3));
    return median(measure(static_cast<int>(std::clamp(500.0 / std::max(first, 1e-3), 5.0, 60.0))));
}

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

// Matrix products only: two of them forward, five backward, over what the mask lets through.
double tera_operations(const ProblemShape& shape, bool backward, double fraction) {
    const double pairs = static_cast<double>(shape.sizes.batch * shape.sizes.heads) *
                         static_cast<double>(shape.sizes.q_len) *
                         static_cast<double>(shape.sizes.kv_len) * fraction;
    const double dims = backward ? 3.0 * shape.head_dim + 2.0 * shape.head_dim_v
                                 : 1.0 * shape.head_dim + shape.head_dim_v;
    return 2e-12 * pairs * dims;
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

void run(const BenchOptions& options) {
    const auto problem = parse_shape(options);
    const auto mod = load_mod(options.mod);
    const auto signature = signature_of(mod);
    const auto buffers = make_buffers(options, signature, problem);

    auto compile_options = mod.options;
    compile_options.dtype = problem.dtype;
    compile_options.head_dim = problem.head_dim;
    compile_options.head_dim_v = problem.head_dim_v;
    compile_options.device = parse_device(options.device);
    compile_options.backward = options.backward;
    compile_options.deterministic = options.deterministic;
    compile_options.forward_kernel = parse_forward_kernel(options.forward_kernel);
    compile_options.backward_kernel = parse_backward_kernel(options.backward_kernel);
    const auto compile_times = time_compiles(mod.text, compile_options);

    AttentionCall call(value_of(compile(mod.text, compile_options)), problem,
                       {.scale = options.scale, .params = mod.param_values});
    const FillSpec unit{FillSpec::Kind::normal, 1.0, 0};
    call.set("q", make_contents(unit, problem.dtype, q_shape(problem), 1));
    call.set("k", make_contents(unit, problem.dtype, k_shape(problem), 2));
    call.set("v", make_contents(unit, problem.dtype, v_shape(problem), 3));
    if (options.backward) {
        call.set("do", make_contents(unit, problem.dtype, o_shape(problem), 4));
    }
    const auto add_buffers = [&](AttentionCall& target) {
        for (const auto& buffer : buffers) {
            target.add_buffer(buffer.info, buffer.shape, buffer.bytes);
        }
    };
    add_buffers(call);
    call.prepare(options.backward);

    const auto device = call.kernel().device();
    const double forward_ms =
        median_time(call, [](void* user) { return static_cast<AttentionCall*>(user)->forward(); });
    std::optional<double> backward_ms;
    if (options.backward) {
        backward_ms = median_time(
            call, [](void* user) { return static_cast<AttentionCall*>(user)->backward(); });
    }
    std::optional<double> map_ms;
    if (call.map_bytes() > 0) {
        map_ms = median_time(
            call, [](void* user) { return static_cast<AttentionCall*>(user)->update_map(); });
    }
    std::vector<double> plan_times;
    for (int i = 0; i < 11; ++i) {
        plan_times.push_back(milliseconds([&] {
            value_of(call.make_plan());
            call.synchronize();
        }));
    }
    const auto visible = visible_fraction(mod, signature, problem, device, add_buffers);
    const auto peak = peak_tera_operations(device, problem.dtype);

    nlohmann::json value{{"device", describe(device)},
                         {"dtype", name(problem.dtype)},
                         {"shape", options.shape},
                         {"forward_ms", forward_ms},
                         {"backward_ms", or_null(backward_ms)},
                         {"plan_ms", median(plan_times)},
                         {"map_ms", or_null(map_ms)},
                         {"map_bytes", call.map_bytes()},
                         {"compile_ms", compile_times.cold_ms},
                         {"cached_compile_ms", or_null(compile_times.cached_ms)},
                         {"visible_fraction", or_null(visible.value)},
                         {"visible_fraction_method", visible.method},
                         {"peak_tflops", or_null(peak)}};
    add_rate(value, "", forward_ms, problem, false, visible, peak);
    if (backward_ms) {
        add_rate(value, "backward_", *backward_ms, problem, true, visible, peak);
    }
    for (const auto& info : call.kernel().kernels()) {
        value["kernels"].push_back(
            {{"name", info.name}, {"registers", info.registers}, {"reason", info.reason}});
    }
    for (const auto& buffer : buffers) {
        value["fills"][buffer.info.name] = buffer.fill;
    }
    options.json ? print_json(value) : print_json_indented(value);
}

} // namespace

void add_bench(CommandLine program) {
    auto options = std::make_shared<BenchOptions>();
    auto command =
        program.command("bench", "Median times of a mod on made-up tensors; prints JSON",
                        "flexc bench alibi --shape 2,16,16,8192,8192,128 --dtype bf16 --backward");
    add_mod_options(command, options->mod, true);
    command.option("--shape", options->shape, "B,H,H_KV,Q,KV,D or B,H,H_KV,Q,KV,D,DV",
                   {.required = true});
    command.option("--dtype", options->dtype, "Type of q, k and v: f32, f16 or bf16");
    command.option("--device", options->device, "auto, cpu, cuda or cuda:N");
    command.flag("--backward", options->backward, "Time the backward too");
    command.option("--scale", options->scale, "Instead of 1/sqrt(D)");
    command.flag("--deterministic", options->deterministic, "Kernels that give the same bits");
    command.option("--forward-kernel", options->forward_kernel, "auto, generic or hopper");
    command.option("--backward-kernel", options->backward_kernel, "auto, fused, split or generic");
    command.option("--dim", options->dims, "N=V: the extent of a dim that a buffer names");
    command.option("--fill", options->fills,
                   "NAME=SPEC: what a buffer holds: normal:STD, uniform:LO:HI, index:N, "
                   "segments:LEN, const:X");
    command.json_flag(options->json);
    command.on_run([options] { run(*options); });
}

} // namespace flexc::cli
