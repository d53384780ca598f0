// flexc run: tensors in, attention and its gradients out.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>

#include <nlohmann/json.hpp>

#include "flexc/attention_call.h"
#include "flexc/command.h"
#include "flexc/compile_options.h"
#include "flexc/fill.h"
#include "flexc/input_check.h"
#include "flexc/layout_option.h"
#include "flexc/mod_option.h"
#include "flexc/ranks.h"
#include "flexc/safetensors.h"
#include "flexc/whole_file.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

struct RunOptions {
    ModOption mod;
    std::string inputs, outputs;
    std::string device = "auto", output_type = "input";
    ChoiceOption choice;
    LayoutOption layout;
    HeadOption part;
    RankOption ranks;
    std::optional<double> scale;
    bool backward = false, report_out_of_range = false;
    bool quiet = false, json = false;
};

struct RunTimes {
    double forward_ms = 0, backward_ms = 0;
};

template <typename Work> double timed(const AttentionCall& call, Work work) {
    const auto start = std::chrono::steady_clock::now();
    require(work());
    call.synchronize();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
}

CompileOptions options_for(const RunOptions& options, const ModText& mod,
                           const ProblemShape& shape) {
    auto compile_options = mod.options;
    compile_options.dtype = shape.dtype;
    compile_options.kv_dtype = shape.kv_dtype;
    compile_options.head_dim = shape.head_dim;
    compile_options.head_dim_v = shape.head_dim_v;
    compile_options.device = parse_device(options.device);
    compile_options.backward = options.backward;
    compile_options.report_out_of_range = options.report_out_of_range;
    compile_options.part_of_heads = is_part(options.part);
    return compile_options;
}

void load_inputs(AttentionCall& call, const TensorFile& file, const Signature& signature,
                 bool backward) {
    const auto set = [&](const char* tensor) {
        if (const auto* entry = file.find(tensor)) {
            call.set(tensor, value_of(file.read(*entry)));
        }
    };
    for (const char* tensor : {"q", "k", "v"}) {
        set(tensor);
    }
    for (const char* tensor : {"k_scale", "v_scale"}) {
        if (const auto* entry = file.find(tensor)) {
            call.set_scale(tensor, entry->shape, value_of(file.read(*entry)));
        }
    }
    if (backward) {
        set("do");
        set("dlse");
    }
    for (const auto& buffer : signature.buffers) {
        const auto& entry = *file.find(buffer.name);
        call.add_buffer(buffer, entry.shape, value_of(file.read(entry)));
    }
}

std::vector<OutputTensor> download(const AttentionCall& call) {
    std::vector<OutputTensor> outputs;
    for (const auto& tensor : call.outputs()) {
        OutputTensor output;
        output.name = tensor.name;
        output.dtype = tensor.view.dtype;
        output.shape.assign(tensor.view.shape.begin(),
                            tensor.view.shape.begin() + tensor.view.rank);
        output.bytes.resize(static_cast<std::size_t>(tensor.view.elements()) *
                            size_of(tensor.view.dtype));
        require(tensor.memory.download(output.bytes.data(), output.bytes.size()));
        outputs.push_back(std::move(output));
    }
    return outputs;
}

// From f32.
void narrow(OutputTensor& output, DType dtype) {
    const auto count = output.bytes.size() / sizeof(float);
    std::vector<std::byte> bytes(count * size_of(dtype));
    for (std::size_t i = 0; i < count; ++i) {
        float value = 0;
        std::memcpy(&value, &output.bytes[i * sizeof value], sizeof value);
        store(&bytes[i * size_of(dtype)], dtype, value);
    }
    output.dtype = dtype;
    output.bytes = std::move(bytes);
}

void report(const RunOptions& options, const AttentionCall& call, const RunTimes& times,
            const std::vector<OutputTensor>& outputs) {
    const auto& kernel = call.kernel();
    const bool out_of_range = options.report_out_of_range && value_of(kernel.out_of_range());
    if (out_of_range) {
        print(stderr, "flexc: warning: a buffer was read outside its bounds; such reads are 0\n");
    }
    std::vector<std::string> kernels, names;
    for (const auto& info : kernel.kernels()) {
        kernels.push_back(info.name);
    }
    for (const auto& output : outputs) {
        names.push_back(output.name);
    }
    if (options.json) {
        nlohmann::json value{{"device", describe(kernel.device())},
                             {"kernels", kernels},
                             {"compile_ms", kernel.compile_ms()},
                             {"cached", kernel.from_cache()},
                             {"forward_ms", times.forward_ms}};
        if (options.backward) {
            value["backward_ms"] = times.backward_ms;
        }
        if (options.report_out_of_range) {
            value["out_of_range"] = out_of_range;
        }
        for (const auto& output : outputs) {
            value["outputs"].push_back(
                {{"name", output.name}, {"dtype", name(output.dtype)}, {"shape", output.shape}});
        }
        print_json(value);
        return;
    }
    if (options.quiet) {
        return;
    }
    print(stdout, "{} on {}: forward {:.2f} ms", joined(kernels, ", "), describe(kernel.device()),
          times.forward_ms);
    if (options.backward) {
        print(stdout, ", backward {:.2f} ms", times.backward_ms);
    }
    print(stdout, " (compile {:.0f} ms{}); wrote {} to {}\n", kernel.compile_ms(),
          kernel.from_cache() ? ", cached" : "", joined(names, " "), options.outputs);
}

void report_ranks(const RunOptions& options, const RankedRun& run, int ranks) {
    if (options.json) {
        nlohmann::json value{{"device", options.ranks.ranks == "mpi" ? "cpu" : "cuda"},
                             {"ranks", ranks},
                             {"exchange", name(run.exchange)},
                             {"shards", run.shards},
                             {"plan", run.plan},
                             {"compile_ms", run.compile_ms},
                             {"cached", run.from_cache},
                             {"forward_ms", run.forward_ms},
                             {"forward_bytes", run.traffic.forward_received}};
        if (options.backward) {
            value["backward_ms"] = run.backward_ms;
            value["backward_bytes"] = run.traffic.backward_received;
        }
        for (const auto& output : run.outputs) {
            value["outputs"].push_back(
                {{"name", output.name}, {"dtype", name(output.dtype)}, {"shape", output.shape}});
        }
        print_json(value);
        return;
    }
    if (options.quiet) {
        return;
    }
    std::vector<std::string> names;
    for (const auto& output : run.outputs) {
        names.push_back(output.name);
    }
    print(stdout, "{} ranks by {}: forward {:.2f} ms", ranks, name(run.exchange), run.forward_ms);
    if (options.backward) {
        print(stdout, ", backward {:.2f} ms", run.backward_ms);
    }
    print(stdout, " (compile {:.0f} ms{}); rank 0 received {} bytes; wrote {} to {}\n",
          run.compile_ms, run.from_cache ? ", cached" : "",
          run.traffic.forward_received + (options.backward ? run.traffic.backward_received : 0),
          joined(names, " "), options.outputs);
}

// The results would take the place of what they were made from.
void require_other_file(const RunOptions& options) {
    std::error_code failure; // where there is no such file yet
    if (std::filesystem::equivalent(options.inputs, options.outputs, failure)) {
        fail_usage(
            formatted("--outputs {}: this is the file of --inputs; name another", options.outputs));
    }
}

void run(const RunOptions& options) {
    auto mod = load_mod(options.mod);
    // What these refuse is said before files are opened.
    apply(options.choice, mod.options);
    apply(options.layout, mod.options);
    const auto communicator = open_ranks(options.ranks, mod.options);
    if (communicator != nullptr && (options.report_out_of_range || is_part(options.part))) {
        fail_usage("--ranks is for all heads, without --report-out-of-range");
    }
    const auto output_type = parse_output_type(options.output_type);
    const auto signature = signature_of(mod);
    const auto file = value_of(TensorFile::open(options.inputs));
    auto shape =
        is_dense(options.layout) ? problem_shape(file) : requests_shape(file, options.layout);
    shape.part = options.part;
    check_inputs(file, signature, shape, options.backward);
    require_other_file(options);
    require(check_writable(options.outputs));

    // The backward's row sums come from o: without its rounding, gradients of buffers are closer.
    const bool learns =
        options.backward && std::ranges::any_of(signature.buffers, &BufferInfo::grad);
    if (communicator != nullptr) {
        if (shape.kv_dtype) {
            fail(formatted("{}: k and v are {}: --ranks is for those of the type of q",
                           options.inputs, name(*shape.kv_dtype)));
        }
        auto compile_options = options_for(options, mod, shape);
        compile_options.device = device_of(options.ranks, options.device);
        const RankedProblem problem{
            .text = mod.text,
            .options = compile_options,
            .shape = shape,
            .scale = options.scale,
            .params = mod.param_values,
            .output_type = learns || output_type == OutputType::f32 ? DType::f32 : shape.dtype,
            .backward = options.backward};
        auto run = run_on_ranks(problem, signature, file, communicator, options.ranks);
        if (communicator->rank() != 0) {
            return;
        }
        if (output_type == OutputType::input && run.outputs.front().dtype != shape.dtype) {
            narrow(run.outputs.front(), shape.dtype);
        }
        require(write_tensors(options.outputs, run.outputs));
        report_ranks(options, run, communicator->ranks());
        return;
    }
    AttentionCall call(value_of(compile(mod.text, options_for(options, mod, shape))), shape,
                       {.scale = options.scale,
                        .params = mod.param_values,
                        .output_type = learns ? OutputType::f32 : output_type});
    load_inputs(call, file, signature, options.backward);
    call.prepare(options.backward);
    RunTimes times;
    times.forward_ms = timed(call, [&] { return call.forward(); });
    if (options.backward) {
        times.backward_ms = timed(call, [&] { return call.backward(); });
    }
    auto outputs = download(call);
    if (output_type == OutputType::input && outputs.front().dtype != shape.dtype) {
        narrow(outputs.front(), shape.dtype);
    }
    require(write_tensors(options.outputs, outputs));
    report(options, call, times, outputs);
}

} // namespace

void add_run(CommandLine program) {
    auto options = std::make_shared<RunOptions>();
    auto command = program.command(
        "run", "Run a mod on tensors from a safetensors file",
        "flexc run alibi.flex --inputs x.safetensors --outputs y.safetensors --backward");
    add_mod_options(command, options->mod, true);
    command.option("--inputs", options->inputs,
                   "safetensors: q [B,H,Q_LEN,D], k, v [B,H_KV,KV_LEN,D or DV], do and dlse for "
                   "--backward, and each buffer by name; of other layouts what these ask for",
                   {.required = true, .file = true});
    command.option("--outputs", options->outputs,
                   "safetensors: o, lse, with --max-scores max_scores, and with --backward dq, dk, "
                   "dv, d.NAME",
                   {.required = true, .file = true});
    command.flag("--backward", options->backward, "Gradients too");
    command.option("--device", options->device, "auto, cpu, cuda or cuda:N",
                   {.usual = {"auto", "cpu", "cuda"}});
    command.option("--scale", options->scale, "Instead of 1/sqrt(D)");
    add_layout_options(command, options->layout);
    add_query_start_option(command, options->layout);
    add_head_options(command, options->part);
    add_choice_options(command, options->choice);
    add_rank_options(command, options->ranks);
    command.option("--output-type", options->output_type, "Of o: input (the type of q) or f32",
                   {.usual = {"input", "f32"}});
    command.flag("--report-out-of-range", options->report_out_of_range,
                 "Warn when a buffer was read outside its bounds");
    command.flag("--quiet", options->quiet, "Print nothing on success");
    command.json_flag(options->json);
    command.on_run([options] { run(*options); });
}

} // namespace flexc::cli
