#include "flexc/bench_case.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <sstream>
#include <thread>

#include "flexc/command.h"
#include "flexc/fill.h"
#include "flexc/layout_option.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

ProblemShape parse_shape(const BenchOption& options) {
    std::vector<std::int64_t> counts;
    std::stringstream stream(options.shape);
    for (std::string part; std::getline(stream, part, ',');) {
        counts.push_back(parse_count(part, "--shape " + options.shape));
    }
    if (!options.requests.empty()) {
        if (counts.size() != 3 && counts.size() != 4) {
            fail_usage(formatted("--shape '{}': with --requests, expected H,H_KV,D or H,H_KV,D,DV",
                                 options.shape));
        }
        if (counts[0] % counts[1] != 0 || std::max(counts[2], counts.back()) > 256) {
            fail_usage(formatted("--shape '{}': H_KV must divide H, and D and DV go from 1 to 256",
                                 options.shape));
        }
        auto shape = made_up_requests(options.requests, options.page_size);
        shape.sizes.heads = counts[0];
        shape.sizes.kv_heads = counts[1];
        shape.head_dim = static_cast<int>(counts[2]);
        shape.head_dim_v = static_cast<int>(counts.back());
        shape.dtype = parse_element_type(options.dtype);
        return shape;
    }
    if (options.page_size != 0) {
        fail_usage("--page-size goes with --requests");
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

std::vector<BufferContents> make_buffers(const BenchOption& options, const Signature& signature,
                                         const ProblemShape& problem) {
    auto sizes = size_names(problem);
    for (const auto& text : options.dims) {
        const auto [dim, count] = split_assignment(text, "--dim");
        const bool is_used = std::ranges::any_of(signature.buffers, [&](const BufferInfo& buffer) {
            return std::ranges::find(buffer.dims, dim) != buffer.dims.end();
        });
        if (!is_used && !sizes.contains(dim)) {
            fail_usage(formatted("--dim {}: no buffer of the program has a dim {}", text, dim));
        }
        if (!sizes.emplace(dim, parse_count(count, "--dim " + dim)).second) {
            fail_usage(formatted("--dim {}: {} is given already", text, dim));
        }
    }
    std::map<std::string, std::string> fills;
    for (const auto& text : options.fills) {
        const auto [buffer, spec] = split_assignment(text, "--fill");
        if (!fills.emplace(buffer, spec).second) {
            fail_usage(formatted("--fill {}: {} is given twice", text, buffer));
        }
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

TensorStrides parse_strides(const BenchOption& options) {
    constexpr std::array kNames = {std::pair{"bhsd", TensorStrides::bhsd},
                                   std::pair{"bshd", TensorStrides::bshd},
                                   std::pair{"padded", TensorStrides::padded}};
    const auto found =
        std::ranges::find(kNames, options.strides, [](const auto& known) { return known.first; });
    if (found == kNames.end()) {
        fail_usage(formatted("--strides '{}': expected bhsd, bshd or padded", options.strides));
    }
    if (found->second != TensorStrides::bhsd && !options.requests.empty()) {
        fail_usage("--strides is of dense tensors, and does not go with --requests");
    }
    return found->second;
}

std::vector<double> times_of(const AttentionCall& call, Result<void> (*work)(void*),
                             Timer::Load load) {
    return value_of(
        Timer::measure(call.kernel().device(), load, work, const_cast<AttentionCall*>(&call)));
}

} // namespace

void add_bench_options(CommandLine command, BenchOption& option) {
    add_mod_options(command, option.mod, true);
    command.option("--shape", option.shape,
                   "B,H,H_KV,Q,KV,D or B,H,H_KV,Q,KV,D,DV; with --requests H,H_KV,D or "
                   "H,H_KV,D,DV",
                   {.required = true});
    command.option("--requests", option.requests,
                   "Ragged queries and keys of COUNTxQUERIES@KEYS,...: 8x1@32768,1x512@4096");
    command.option("--page-size", option.page_size,
                   "Keys of --requests in pages of so many, which lie in no order", {.most = 1024});
    command.option("--dtype", option.dtype, "Type of q, k and v",
                   {.usual = {"f32", "f16", "bf16"}});
    command.option("--kv-dtype", option.kv_dtype,
                   "Of k and v, where it is another, with a scale for each head of keys",
                   {.usual = {"e4m3", "e5m2", "i8"}});
    command.option("--strides", option.strides,
                   "How dense tensors lie in memory: padded has rows of an element more",
                   {.usual = {"bhsd", "bshd", "padded"}});
    command.option("--device", option.device, "auto, cpu, cuda or cuda:N",
                   {.usual = {"auto", "cpu", "cuda"}});
    command.option("--scale", option.scale, "Instead of 1/sqrt(D)");
    command.option("--dim", option.dims, "N=V: the extent of a dim that a buffer names");
    command.option("--fill", option.fills,
                   "NAME=SPEC: what a buffer holds: normal:STD, uniform:LO:HI, index:N, "
                   "segments:LEN, const:X");
    add_time_option(command, option.max_seconds, "600");
}

TimeLimit time_limit(const BenchOption& option, bool as_json) {
    constexpr double kUsualSeconds = 600;
    return TimeLimit(parse_seconds(option.max_seconds.value_or(kUsualSeconds)), as_json,
                     "take a smaller --shape or --requests, or raise --max-seconds");
}

void BenchCase::add_buffers(AttentionCall& call) const {
    for (const auto& buffer : buffers) {
        call.add_buffer(buffer.info, buffer.shape, buffer.bytes);
    }
}

BenchCase make_case(const BenchOption& option) {
    auto problem = parse_shape(option);
    if (!option.kv_dtype.empty()) problem.kv_dtype = parse_narrow_type(option.kv_dtype);
    auto mod = load_mod(option.mod);
    auto signature = signature_of(mod);
    auto buffers = make_buffers(option, signature, problem);
    mod.options.dtype = problem.dtype;
    mod.options.kv_dtype = problem.kv_dtype;
    mod.options.head_dim = problem.head_dim;
    mod.options.head_dim_v = problem.head_dim_v;
    mod.options.device = parse_device(option.device);
    mod.options.query_layout = problem.query_layout;
    mod.options.key_layout = problem.key_layout;
    return {.mod = std::move(mod),
            .signature = std::move(signature),
            .problem = problem,
            .scale = option.scale,
            .strides = parse_strides(option),
            .buffers = std::move(buffers)};
}

AttentionCall make_call(const BenchCase& bench, Kernel kernel, bool backward,
                        OutputType output_type) {
    const auto& problem = bench.problem;
    AttentionCall call(std::move(kernel), problem,
                       {.scale = bench.scale,
                        .params = bench.mod.param_values,
                        .output_type = output_type,
                        .strides = bench.strides});
    const FillSpec unit{FillSpec::Kind::normal, 1.0, 0};
    // So much of a cache's own scale is one: i8 has no other numbers near it.
    constexpr float kNarrowUnit = 32;
    const auto of_keys = problem.kv_dtype.value_or(problem.dtype);
    const FillSpec narrow{FillSpec::Kind::normal, problem.kv_dtype ? kNarrowUnit : 1.0, 0};
    call.set("q", make_contents(unit, problem.dtype, q_shape(problem), 1));
    call.set("k", make_contents(narrow, of_keys, k_shape(problem), 2));
    call.set("v", make_contents(narrow, of_keys, v_shape(problem), 3));
    if (problem.kv_dtype) {
        const std::vector<float> scales(static_cast<std::size_t>(problem.sizes.kv_heads),
                                        1 / kNarrowUnit);
        const std::array shape = {problem.sizes.kv_heads};
        for (const char* name : {"k_scale", "v_scale"}) {
            call.set_scale(name, shape, std::as_bytes(std::span(scales)));
        }
    }
    if (backward) {
        call.set("do", make_contents(unit, problem.dtype, o_shape(problem), 4));
    }
    bench.add_buffers(call);
    call.prepare(backward);
    return call;
}

double median(std::vector<double> values) {
    if (values.empty()) {
        fail("the device gave no times");
    }
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

double median_time(const AttentionCall& call, Result<void> (*work)(void*)) {
    return median(times_of(call, work, {}));
}

double rested_time(const AttentionCall& call, Result<void> (*work)(void*), int loads) {
    constexpr std::chrono::milliseconds kRest{60};
    std::vector<double> all;
    for (int i = 0; i < loads; ++i) {
        std::this_thread::sleep_for(kRest);
        const auto times = times_of(call, work, {.warm_up_ms = 2, .load_ms = 10});
        all.insert(all.end(), times.begin(), times.end());
    }
    return median(std::move(all));
}

Result<void> run_forward(void* call) { return static_cast<AttentionCall*>(call)->forward(); }

double tera_operations(const ProblemShape& shape, bool backward, double fraction) {
    const auto rows =
        shape.query_layout == Layout::ragged ? shape.q_rows : shape.sizes.batch * shape.sizes.q_len;
    const double pairs = static_cast<double>(shape.sizes.heads) * static_cast<double>(rows) *
                         static_cast<double>(shape.sizes.kv_len) * fraction;
    const double dims = backward ? 3.0 * shape.head_dim + 2.0 * shape.head_dim_v
                                 : 1.0 * shape.head_dim + shape.head_dim_v;
    return 2e-12 * pairs * dims;
}

} // namespace flexc::cli
