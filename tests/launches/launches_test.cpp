// The plans of programs against tests/launches/plans.txt, and what each pass fills and launches
// against launches.txt. FLEXC_UPDATE_LAUNCHES=1 writes these files; FLEXC_LAUNCH_TRACES=FILE writes
// every argument of every launch, for comparing two builds.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

#include "common/reciprocal.h"
#include "common/sequences.h"
#include "flexc/flexc.h"
#include "runtime/state.h"
#include "support/text.h"

using namespace flexc;

namespace {

const std::string kLaunches = FLEXC_SOURCE_DIR "/tests/launches/launches.txt";
const std::string kPlans = FLEXC_SOURCE_DIR "/tests/launches/plans.txt";

template <typename Function> Function of_recorder(const char* name) {
    const char* path = std::getenv("FLEXC_LIBCUDA");
    void* library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

std::string take_recorded() {
    using Take = void (*)(void (*)(void*, const char*), void*);
    static const Take kTake = of_recorder<Take>("flexc_take_recorded");
    std::string text;
    if (kTake != nullptr)
        kTake([](void* user, const char* part) { *static_cast<std::string*>(user) = part; }, &text);
    return text;
}

struct Program {
    std::string name, text, mask = {};
};

// Each class of program that chooses kernels, steps or workspace by itself.
const std::vector<Program> kPrograms = {
    {"plain", "score"},
    {"causal", "score", "q_idx >= kv_idx"},
    {"window", "score", "q_idx >= kv_idx && q_idx - kv_idx < 256"},
    {"documents", "buffer ids: i32[B, Q_LEN]\nscore", "ids[b, q_idx] == ids[b, kv_idx]"},
    {"slopes", "buffer slopes: f32[H] grad\nscore + slopes[h] * (kv_idx - q_idx)"},
    {"half_slopes", "buffer slopes: bf16[H] grad\nscore + slopes[h] * (kv_idx - q_idx)"},
    {"key_bias", "buffer a: f32[H, KV_LEN] grad\nscore + a[h, kv_idx]"},
    {"gate", "buffer a: f32[B, H, Q_LEN] grad\nscore * a[b, h, q_idx]"},
    {"relative", "buffer t: f32[H, 2 * 4096] grad\nscore + t[h, q_idx - kv_idx + 4096]"},
    {"buckets", "buffer t: f32[H, 64] grad\n"
                "score + t[h, clamp(q_idx - kv_idx + 32, 0, 63)]"},
    {"dense_bias", "buffer bias: bf16[H, Q_LEN, KV_LEN] grad\nscore + bias[h, q_idx, kv_idx]"},
    {"frozen_bias", "buffer bias: f32[B, H, Q_LEN, KV_LEN]\nscore + bias[b, h, q_idx, kv_idx]"},
    {"grid", "buffer rows: f32[B, H, Q_LEN, 8] grad\nbuffer columns: f32[B, H, Q_LEN, 64] grad\n"
             "score + rows[b, h, q_idx, kv_idx // 64] + columns[b, h, q_idx, kv_idx % 64]"},
    {"kinds", "buffer t: f32[8, 8, H] grad\nbuffer g: i32[Q_LEN]\n"
              "score + t[g[q_idx], g[kv_idx], h]"},
    {"kinds_of_pairs", "buffer t: f32[H, 64] grad\nbuffer d: i32[B, Q_LEN, KV_LEN]\n"
                       "score + t[h, d[b, q_idx, kv_idx]]"},
    {"softcap", "20 * tanh(score / 20)"},
    // Calls tell that the first is inside of its buffer, and that the second is not.
    {"bias_at_the_end", "buffer bias: bf16[H, KV_LEN, KV_LEN] grad\n"
                        "score + bias[h, q_idx + KV_LEN - Q_LEN, kv_idx]"},
    {"bias_beyond_the_end", "buffer bias: bf16[H, Q_LEN, KV_LEN] grad\n"
                            "score + bias[h, q_idx + 1, kv_idx]"},
    {"shared_gradients",
     "buffer s: f32[H, 64] grad\nbuffer t: bf16[H, 64] grad\n"
     "score * s[h, min(abs(q_idx - kv_idx), 63)] + t[h, min(abs(q_idx - kv_idx), 63)]"},
    {"sinks", "buffer sinks: f32[H] grad\nsink = sinks[h] + q_idx * 0.5\nscore", "q_idx >= kv_idx"},
};

struct Setting {
    const char* name;
    int arch;
    DType dtype;
    int head_dim;
    bool deterministic = false;
    BackwardKernel backward = BackwardKernel::automatic;
    const char* spills = ""; // the template all of whose kernels do
    GradientType gradient_type = GradientType::f32;
};
constexpr Setting kSettings[] = {
    {"H100 bf16 D64", 90, DType::bf16, 64},
    {"H100 bf16 D256", 90, DType::bf16, 256},
    {"H100 bf16 D64 deterministic", 90, DType::bf16, 64, true},
    {"H100 bf16 D64 split", 90, DType::bf16, 64, false, BackwardKernel::split},
    {.name = "H100 bf16 D128, forward spills",
     .arch = 90,
     .dtype = DType::bf16,
     .head_dim = 128,
     .spills = "forward_sm90.cu"},
    {.name = "H100 bf16 D128, backward spills",
     .arch = 90,
     .dtype = DType::bf16,
     .head_dim = 128,
     .spills = "backward_sm90.cu"},
    {.name = "H100 bf16 D64, gradients in the buffers' types",
     .arch = 90,
     .dtype = DType::bf16,
     .head_dim = 64,
     .gradient_type = GradientType::buffer},
    {"A100 bf16 D64", 80, DType::bf16, 64},
};

// Of a call, beside the usual contiguous one.
struct Variant {
    const char* name;
    bool odd_strides = false, odd_buffers = false, accumulate = false, floats = false,
         d_lse = false;
    double scale = 0.125;
    std::int64_t kv_offset = 0;
    bool plans_with_buffers = true, plans_with_tensors = true;
};
constexpr Variant kVariants[] = {
    {"usual"},
    {.name = "odd strides", .odd_strides = true},
    {.name = "odd buffers", .odd_buffers = true},
    {.name = "accumulated floats", .accumulate = true, .floats = true, .d_lse = true},
    {.name = "negative scale", .scale = -1},
    {.name = "offset 37", .kv_offset = 37},
    {.name = "no buffers at plan", .plans_with_buffers = false},
    {.name = "no tensors at plan", .plans_with_tensors = false},
    {.name = "odd strides, no tensors at plan", .odd_strides = true, .plans_with_tensors = false},
};

// Addresses that nothing reads.
class Addresses {
  public:
    void* next() { return reinterpret_cast<void*>(at_ += 0x1'0000'0000); }

  private:
    std::uintptr_t at_ = 0x100'0000'0000;
};

TensorView tensor(Addresses& addresses, DType dtype, std::vector<std::int64_t> shape,
                  bool odd_strides = false) {
    TensorView view = TensorView::contiguous(addresses.next(), dtype, std::span(shape));
    if (odd_strides && view.rank > 1) {
        const std::int64_t row = view.shape[view.rank - 1];
        for (int dim = 0; dim + 1 < view.rank; ++dim)
            view.strides[dim] = view.strides[dim] / row * (row + 3);
    }
    return view;
}

struct Case {
    const Program& program;
    const Setting& setting;
};

CompileOptions options_of(const Setting& setting, const Program& program) {
    CompileOptions options;
    options.mask_mod = program.mask;
    options.dtype = setting.dtype;
    options.head_dim = setting.head_dim;
    options.device = Device::cuda();
    options.deterministic = setting.deterministic;
    options.backward_kernel = setting.backward;
    options.gradient_type = setting.gradient_type;
    options.cache.disk = options.cache.memory = false;
    return options;
}

constexpr Sizes kSizes = {.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 1000, .kv_len = 1200};

// Dims of a buffer at kSizes.
std::vector<std::int64_t> extents(const ir::Program& program, const ir::Buffer& buffer,
                                  const Variant& variant) {
    const std::map<std::string, std::int64_t> known = {
        {"B", kSizes.batch},
        {"H", kSizes.heads},
        {"H_KV", kSizes.kv_heads},
        {"Q_LEN", kSizes.q_len},
        {"KV_LEN", kSizes.kv_len + variant.kv_offset}};
    std::vector<std::int64_t> result;
    for (const ir::Dim& dim : buffer.dims) {
        const auto found = dim.is_constant() ? known.end() : known.find(program.sizes[dim.size]);
        result.push_back(dim.is_constant()      ? dim.constant
                         : found == known.end() ? 48
                                                : found->second);
    }
    return result;
}

// Everything that plan, forward and backward of one call record, or the error.
std::string trace(const Kernel& kernel, const Setting& setting, const Variant& variant) {
    Addresses addresses;
    const Sizes& n = kSizes;
    const std::int64_t d = setting.head_dim;
    const DType gradient = variant.floats ? DType::f32 : setting.dtype;
    const auto rows = [&](std::int64_t heads, std::int64_t length, DType dtype) {
        return tensor(addresses, dtype, {n.batch, heads, length, d}, variant.odd_strides);
    };
    const TensorView q = rows(n.heads, n.q_len, setting.dtype),
                     k = rows(n.kv_heads, n.kv_len, setting.dtype),
                     v = rows(n.kv_heads, n.kv_len, setting.dtype),
                     o = rows(n.heads, n.q_len, gradient),
                     lse = tensor(addresses, DType::f32, {n.batch, n.heads, n.q_len}),
                     d_out = rows(n.heads, n.q_len, setting.dtype),
                     d_lse = variant.d_lse
                                 ? tensor(addresses, DType::f32, {n.batch, n.heads, n.q_len})
                                 : TensorView{},
                     dq = rows(n.heads, n.q_len, gradient),
                     dk = rows(n.kv_heads, n.kv_len, gradient),
                     dv = rows(n.kv_heads, n.kv_len, gradient);
    const ir::Program& program = kernel.state().mod.program;
    std::vector<NamedTensor> buffers, gradients;
    for (const ir::Buffer& buffer : program.buffers) {
        const auto shape = extents(program, buffer, variant);
        buffers.push_back(
            {buffer.name, tensor(addresses, buffer.dtype, shape, variant.odd_buffers)});
        if (buffer.grad)
            gradients.push_back(
                {buffer.name,
                 tensor(addresses,
                        setting.gradient_type == GradientType::f32 ? DType::f32 : buffer.dtype,
                        shape)});
    }
    std::string text;
    const auto add = [&](std::string_view pass, const Result<void>& done) {
        text += formatted("{}:\n{}{}", pass, take_recorded(),
                          done ? "" : "error: " + done.error().message + "\n");
    };
    (void)take_recorded();
    const ForwardTensors forward = {q, k, v, o, lse};
    const BackwardTensors backward = {q, k, v, o, lse, d_out, d_lse, dq, dk, dv};
    const auto plan = kernel.plan(n,
                                  variant.plans_with_buffers ? std::span<const NamedTensor>(buffers)
                                                             : std::span<NamedTensor>(),
                                  {},
                                  {.scale = variant.scale,
                                   .kv_offset = variant.kv_offset,
                                   .accumulate_gradients = variant.accumulate,
                                   .forward = variant.plans_with_tensors ? &forward : nullptr,
                                   .backward = variant.plans_with_tensors ? &backward : nullptr});
    if (!plan) {
        add("plan", plan.error());
        return text;
    }
    add("plan", {});
    const Workspace workspace = {addresses.next(), plan->workspace_bytes()};
    text += formatted("workspace {} block mask {}\n", plan->workspace_bytes(),
                      plan->block_mask_bytes());
    add("forward", kernel.forward(*plan, forward, buffers, workspace));
    add("backward", kernel.backward(*plan, backward, buffers, gradients, workspace));
    return text;
}

// Everything that a call with requests records: lengths that are on the device, or the host's.
std::string trace_requests(Layout keys, bool on_device, int most_queries, const char* mask) {
    const Program program{"", "buffer a: f32[N] grad\nscore + a[q_row]", mask};
    CompileOptions options = options_of({"", 90, DType::bf16, 64}, program);
    options.query_layout = Layout::ragged;
    options.key_layout = keys;
    options.backward = keys == Layout::ragged;
    const auto kernel = compile(program.text, options);
    if (!kernel) return formatted("error: {}\n", kernel.error().message);
    constexpr std::int64_t kPageSize = 16, kPages = 100, kWidth = 20;
    const Sizes n{.batch = 3, .heads = 8, .kv_heads = 2, .q_len = most_queries, .kv_len = 300};
    Addresses addresses;
    const auto rows = [&](std::int64_t count, std::int64_t heads) {
        return tensor(addresses, DType::bf16, {count, heads, 64});
    };
    const TensorView q = rows(1000, n.heads), o = rows(1000, n.heads),
                     lse = tensor(addresses, DType::f32, {1000, n.heads}),
                     a = tensor(addresses, DType::f32, {1000});
    const auto of_keys = [&] {
        return keys == Layout::ragged
                   ? rows(900, n.kv_heads)
                   : tensor(addresses, DType::bf16, {kPages, kPageSize, n.kv_heads, 64});
    };
    const TensorView k = of_keys(), v = of_keys();
    const ForwardTensors forward{.q = q, .k = k, .v = v, .o = o, .lse = lse};
    const NamedTensor buffers[] = {{"a", a}};
    const std::vector<std::int32_t> cu_q = {0, 1, 2, 2}, cu_k = {0, 300, 400, 900},
                                    used = {300, 0, 77}, table(n.batch * kWidth, 5);
    Lengths lengths{.page_size = keys == Layout::paged ? kPageSize : 0,
                    .pages = keys == Layout::paged ? kPages : 0,
                    .on_device = on_device};
    if (!on_device) {
        lengths.cu_seqlens_q = cu_q;
        lengths.seqused_k = used;
        (keys == Layout::paged ? lengths.page_table : lengths.cu_seqlens_k) =
            keys == Layout::paged ? table : cu_k;
    }
    LengthTensors tensors;
    const auto numbers = [&](std::int64_t count) { return tensor(addresses, DType::i32, {count}); };
    tensors.cu_seqlens_q = numbers(n.batch + 1);
    tensors.seqused_k = numbers(n.batch);
    (keys == Layout::paged ? tensors.page_table : tensors.cu_seqlens_k) =
        numbers(keys == Layout::paged ? n.batch * kWidth : n.batch + 1);
    std::string text;
    const auto add = [&](std::string_view what, const Result<void>& done) {
        text += formatted("{}:\n{}{}", what, take_recorded(),
                          done ? "" : "error: " + done.error().message + "\n");
    };
    (void)take_recorded();
    auto plan = kernel->plan(n, buffers, {}, {.lengths = lengths, .forward = &forward});
    add("plan", plan ? Result<void>() : plan.error());
    if (!plan) return text;
    const Workspace workspace = {addresses.next(), plan->workspace_bytes()};
    text += formatted("workspace {}\n", plan->workspace_bytes());
    add("update", on_device ? kernel->update(*plan, tensors) : kernel->update(*plan, lengths));
    add("forward", kernel->forward(*plan, forward, buffers, workspace));
    if (keys == Layout::paged) return text;
    const BackwardTensors backward{.q = q,
                                   .k = k,
                                   .v = v,
                                   .o = o,
                                   .lse = lse,
                                   .d_out = rows(1000, n.heads),
                                   .dq = rows(1000, n.heads),
                                   .dk = rows(900, n.kv_heads),
                                   .dv = rows(900, n.kv_heads)};
    const NamedTensor gradients[] = {{"a", tensor(addresses, DType::f32, {1000})}};
    add("backward", kernel->backward(*plan, backward, buffers, gradients, workspace));
    return text;
}

// Everything that plan, forward and backward record of sequences of these sizes.
std::string trace_sequences(const CompileOptions& options, std::string_view program,
                            const Sizes& n) {
    const auto kernel = compile(program, options);
    if (!kernel) return formatted("error: {}\n", kernel.error().message);
    Addresses addresses;
    const auto rows = [&](std::int64_t heads, std::int64_t length) {
        return tensor(addresses, DType::bf16, {n.batch, heads, length, options.head_dim});
    };
    const auto of_queries = [&] { return rows(n.heads, n.q_len); };
    const auto of_keys = [&] { return rows(n.kv_heads, n.kv_len); };
    const TensorView q = of_queries(), k = of_keys(), v = of_keys(), o = of_queries(),
                     lse = tensor(addresses, DType::f32, {n.batch, n.heads, n.q_len});
    const ForwardTensors forward{.q = q, .k = k, .v = v, .o = o, .lse = lse};
    const BackwardTensors backward{.q = q,
                                   .k = k,
                                   .v = v,
                                   .o = o,
                                   .lse = lse,
                                   .d_out = of_queries(),
                                   .dq = of_queries(),
                                   .dk = of_keys(),
                                   .dv = of_keys()};
    const NamedTensor buffers[] = {
        {"t", tensor(addresses, DType::f32, {n.heads, n.q_len + n.kv_len})}};
    (void)take_recorded();
    const auto plan = kernel->plan(n, buffers, {}, {.forward = &forward, .backward = &backward});
    if (!plan) return "error: " + plan.error().message + "\n";
    const Workspace workspace = {addresses.next(), plan->workspace_bytes()};
    std::string text;
    for (const auto& done : {kernel->forward(*plan, forward, buffers, workspace),
                             kernel->backward(*plan, backward, buffers, {}, workspace)})
        if (!done) text += "error: " + done.error().message + "\n";
    return take_recorded() + text;
}

// "flexc_forward_sm90 132 x 384" for each launch, "fill 4096" for each fill.
std::string summary_of(const std::string& trace) {
    std::istringstream lines(trace);
    std::string line, text;
    while (std::getline(lines, line)) {
        if (line.starts_with(' ')) continue;
        std::istringstream words(line);
        std::vector<std::string> all;
        for (std::string word; words >> word;)
            all.push_back(word);
        if (line.starts_with("fill"))
            text += formatted("  fill {}\n", all[5]);
        else if (line.starts_with("flexc_")) {
            const auto grid = std::ranges::find(all, "grid");
            text += formatted("  {} {}{} x {}\n", all[0], grid[1],
                              grid[2] == "1" ? "" : " x " + grid[2], grid[5]);
        } else
            text += line + "\n";
    }
    return text;
}

// What the process writes to stderr meanwhile.
std::string stderr_of(const std::function<void()>& work) {
    std::FILE* const file = std::tmpfile();
    const int kept = ::dup(STDERR_FILENO);
    ::dup2(::fileno(file), STDERR_FILENO);
    work();
    ::dup2(kept, STDERR_FILENO);
    ::close(kept);
    std::rewind(file);
    std::string text(4096, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    return text;
}

struct Recorded {
    std::string summaries, traces;
};

// With every mod of the library beside them where all arguments are written.
std::vector<Program> programs() {
    std::vector<Program> all = kPrograms;
    if (std::getenv("FLEXC_LAUNCH_TRACES") != nullptr)
        for (const LibraryEntry& entry : library())
            all.push_back({"library " + entry.name, entry.text});
    return all;
}

Recorded record_all() {
    Recorded result;
    for (const Setting& setting : kSettings) {
        ::setenv("FLEXC_RECORDED_ARCH", std::to_string(setting.arch).c_str(), 1);
        ::setenv("FLEXC_RECORDED_SPILLS", *setting.spills ? setting.spills : "none", 1);
        for (const Program& program : programs()) {
            const std::string name = formatted("{}, {}", program.name, setting.name);
            const auto kernel = compile(program.text, options_of(setting, program));
            if (!kernel) {
                result.summaries += formatted("# {}\nerror: {}\n", name, kernel.error().message);
                result.traces += formatted("# {}\nerror: {}\n", name, kernel.error().message);
                continue;
            }
            std::set<std::string> known; // summaries of variants
            for (const Variant& variant : kVariants) {
                const std::string text = trace(*kernel, setting, variant);
                result.traces += formatted("# {}, {}\n{}", name, variant.name, text);
                // Only what is not as in a variant before.
                if (known.insert(summary_of(text)).second)
                    result.summaries +=
                        formatted("# {}, {}\n{}", name, variant.name, summary_of(text));
            }
        }
    }
    ::setenv("FLEXC_RECORDED_ARCH", "90", 1);
    ::setenv("FLEXC_RECORDED_SPILLS", "none", 1);
    for (const Layout keys : {Layout::ragged, Layout::paged})
        for (const bool on_device : {false, true})
            for (const int most_queries : {0, 1, 200}) {
                const std::string name =
                    formatted("requests, {} keys, at most {} queries, lengths on the {}",
                              flexc::name(keys), most_queries, on_device ? "device" : "host");
                const std::string text =
                    trace_requests(keys, on_device, most_queries, "q_idx >= kv_idx");
                result.traces += formatted("# {}\n{}", name, text);
                result.summaries += formatted("# {}\n{}", name, summary_of(text));
            }
    for (const Layout keys : {Layout::ragged, Layout::paged})
        for (const int most_queries : {0, 1, 200}) {
            const std::string name =
                formatted("requests with a block mask, {} keys, at most {} queries",
                          flexc::name(keys), most_queries);
            const std::string text = trace_requests(keys, true, most_queries,
                                                    "(q_idx // 64 + kv_idx // 64) % 3 == h % 3");
            result.traces += formatted("# {}\n{}", name, text);
            result.summaries += formatted("# {}\n{}", name, summary_of(text));
        }
    constexpr std::string_view kTable =
        "buffer t: f32[H, N]\nscore + t[h, q_idx - kv_idx + KV_LEN]";
    CompileOptions options = options_of({"", 90, DType::bf16, 32}, {"", ""});
    for (const bool is_automatic : {true, false})
        for (const std::int64_t batch : {100, 2000})
            for (const std::int64_t rows : {16, 49, 65, 257}) {
                options.forward_kernel =
                    is_automatic ? ForwardKernel::automatic : ForwardKernel::specialized;
                options.backward_kernel =
                    is_automatic ? BackwardKernel::automatic : BackwardKernel::specialized;
                const std::string name = formatted("{} sequences of {} rows, {}", 6 * batch, rows,
                                                   is_automatic ? "automatic" : "specialized");
                const std::string text = trace_sequences(
                    options, kTable,
                    {.batch = batch, .heads = 6, .kv_heads = 3, .q_len = rows, .kv_len = rows});
                result.traces += formatted("# {}\n{}", name, text);
                result.summaries += formatted("# {}\n{}", name, summary_of(text));
            }
    options.forward_kernel = ForwardKernel::automatic;
    options.backward_kernel = BackwardKernel::automatic;
    for (const Sizes& sizes :
         {Sizes{.batch = 4, .heads = 32, .kv_heads = 8, .q_len = 1, .kv_len = 32768},
          {.batch = 3, .heads = 64, .kv_heads = 1, .q_len = 1, .kv_len = 8192},
          {.batch = 300, .heads = 8, .kv_heads = 8, .q_len = 4, .kv_len = 4096},
          {.batch = 1, .heads = 8, .kv_heads = 1, .q_len = 9, .kv_len = 32768}}) {
        const std::string name =
            formatted("{} x {} queries of {} heads on {} keys of {}", sizes.batch, sizes.q_len,
                      sizes.heads, sizes.kv_len, sizes.kv_heads);
        const std::string text = trace_sequences(options, kTable, sizes);
        result.traces += formatted("# {}\n{}", name, text);
        result.summaries += formatted("# {}\n{}", name, summary_of(text));
    }
    // A sink has kernels ahead, which pass over rows.
    const std::string with_sink =
        trace_sequences(options, "buffer t: f32[H, N]\nsink = t[h, 0]\nscore",
                        {.batch = 2000, .heads = 6, .kv_heads = 3, .q_len = 49, .kv_len = 49});
    result.traces += "# 12000 sequences of 49 rows with a sink\n" + with_sink;
    result.summaries += "# 12000 sequences of 49 rows with a sink\n" + summary_of(with_sink);
    return result;
}

std::string text_of_file(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

// FLEXC_UPDATE_LAUNCHES writes the record instead.
void compare(const std::string& path, const std::string& now) {
    if (std::getenv("FLEXC_UPDATE_LAUNCHES") != nullptr) {
        std::ofstream(path) << now;
        return;
    }
    std::istringstream before(text_of_file(path)), after(now);
    std::string old_line, new_line, place;
    for (int line = 1; true; ++line) {
        const bool has_old = static_cast<bool>(std::getline(before, old_line));
        const bool has_new = static_cast<bool>(std::getline(after, new_line));
        if (!has_old && !has_new) break;
        if (has_new && new_line.starts_with('#')) place = new_line;
        CAPTURE(place);
        CAPTURE(line);
        REQUIRE(has_old == has_new);
        REQUIRE(old_line == new_line);
    }
}

} // namespace

TEST_CASE("each pass fills and launches what the record says") {
    REQUIRE_MESSAGE(std::getenv("FLEXC_LIBCUDA") != nullptr, "run it by ctest");
    const Recorded now = record_all();
    if (const char* path = std::getenv("FLEXC_LAUNCH_TRACES"))
        std::ofstream(path) << now.traces; // of more programs than the record has
    else
        compare(kLaunches, now.summaries);
}

TEST_CASE("kernels of short sequences that do not compile give way once, and the log says so") {
    ::setenv("FLEXC_RECORDED_ARCH", "90", 1);
    ::setenv("FLEXC_RECORDED_SPILLS", "none", 1);
    const auto kernel = compile("score", options_of({"", 90, DType::bf16, 32}, {"", ""}));
    REQUIRE(kernel);
    ::setenv("FLEXC_RECORDED_REFUSES", "forward_short.cu", 1);
    ::setenv("FLEXC_LOG", "warn", 1);
    const Sizes many = {.batch = 2000, .heads = 6, .kv_heads = 6, .q_len = 49, .kv_len = 49};
    (void)take_recorded();
    const std::string said = stderr_of([&] {
        for (int i = 0; i < 2; ++i)
            CHECK(kernel->plan(many));
    });
    ::unsetenv("FLEXC_RECORDED_REFUSES");
    ::unsetenv("FLEXC_LOG");
    CHECK(take_recorded() == "refused forward_short.cu\n");
    CHECK(said.find("sequences of at most 64 rows cannot be compiled") != std::string::npos);
}

TEST_CASE("updates from the host's memory wait for the device after several that it has not done") {
    REQUIRE_MESSAGE(std::getenv("FLEXC_LIBCUDA") != nullptr, "run it by ctest");
    const auto are_whole = of_recorder<bool (*)()>("flexc_copies_are_whole");
    REQUIRE(static_cast<bool>(are_whole));
    CompileOptions options = options_of({"", 90, DType::bf16, 64}, {"", "score"});
    options.query_layout = Layout::ragged;
    options.key_layout = Layout::paged;
    options.backward = false;
    const auto kernel = compile("score", options);
    REQUIRE_MESSAGE(kernel, kernel.error().message);
    const Sizes n{.batch = 1, .heads = 1, .kv_heads = 1, .q_len = 1, .kv_len = 400'000};
    const std::vector<std::int32_t> cu_q = {0, 1}, table(25'000, 5);
    std::vector<std::int32_t> used = {1};
    Lengths lengths{.page_size = 16, .pages = 10};
    lengths.cu_seqlens_q = cu_q;
    lengths.seqused_k = used;
    lengths.page_table = table;
    const auto plan = kernel->plan(n, {}, {}, {.lengths = lengths});
    REQUIRE_MESSAGE(plan, plan.error().message);
    (void)take_recorded();
    REQUIRE(setenv("FLEXC_RECORDED_BUSY", "1", 1) == 0);
    int updates = 0;
    const int most = 100;
    // Of ever more keys, so that stages grow.
    while (updates < most && take_recorded().find("wait") == std::string::npos) {
        CAPTURE(updates);
        CHECK(are_whole());
        used[0] = 1 + 3999 * ++updates;
        REQUIRE(kernel->update(*plan, lengths));
    }
    unsetenv("FLEXC_RECORDED_BUSY");
    CHECK((updates > 2 && updates < most));
}

TEST_CASE("divisors that params and sizes determine come with their reciprocals") {
    REQUIRE_MESSAGE(std::getenv("FLEXC_LIBCUDA") != nullptr, "run it by ctest");
    for (const std::int64_t w : {7, 1, 0, -3, 1 << 30}) {
        CAPTURE(w);
        const Program program{"", formatted("param w: i32 = {}\nbuffer a: f32[KV_LEN]\nscore_mod = "
                                            "score + a[kv_idx // w] + kv_idx % (w * Q_LEN)",
                                            w)};
        const auto kernel = compile(program.text, options_of(kSettings[0], program));
        REQUIRE_MESSAGE(kernel, kernel.error().message);
        std::string words;
        for (const std::int64_t divisor : {w, w * kSizes.q_len})
            words += formatted(" {:x} {:x}", std::bit_cast<std::uint64_t>(reciprocal_of(divisor)),
                               static_cast<std::uint64_t>(std::int64_t{sign_of(divisor)}));
        const std::string text = trace(*kernel, kSettings[0], kVariants[0]);
        CHECK_MESSAGE(text.find(words) != std::string::npos, words, " in ", text);
    }
}

TEST_CASE("launches for few queries have the blocks of known parts, and in a graph the most") {
    REQUIRE_MESSAGE(std::getenv("FLEXC_LIBCUDA") != nullptr, "run it by ctest");
    CompileOptions options = options_of({"", 90, DType::bf16, 64}, {"", "score"});
    options.query_layout = Layout::ragged;
    options.key_layout = Layout::paged;
    options.backward = false;
    const auto kernel = compile("score", options);
    REQUIRE_MESSAGE(kernel, kernel.error().message);
    constexpr std::int64_t kRequests = 3, kHeads = 8, kKvHeads = 2, kMostQueries = 40,
                           kMostKeys = 40'000, kWidth = kMostKeys / 16;
    const Sizes n{.batch = kRequests,
                  .heads = kHeads,
                  .kv_heads = kKvHeads,
                  .q_len = kMostQueries,
                  .kv_len = kMostKeys};
    const std::vector<std::int32_t> table(kRequests * kWidth, 5);
    using Numbers = std::vector<std::int32_t>;
    const auto lengths_of = [&](const Numbers& cu_q, const Numbers& used) {
        Lengths lengths{.page_size = 16, .pages = 10};
        lengths.cu_seqlens_q = cu_q;
        lengths.seqused_k = used;
        lengths.page_table = table;
        return lengths;
    };
    const Numbers ones = {0, 1, 2, 3}, some = {0, 1, 41, 42}, none = {0, 0, 0, 0};
    const Numbers few = {200, 0, 16}, many = {40'000, 10, 300};
    const auto plan = kernel->plan(n, {}, {}, {.lengths = lengths_of(ones, few)});
    REQUIRE_MESSAGE(plan, plan.error().message);
    Addresses addresses;
    const auto rows = [&] { return tensor(addresses, DType::bf16, {120, kHeads, 64}); };
    const auto pages = [&] { return tensor(addresses, DType::bf16, {10, 16, kKvHeads, 64}); };
    const ForwardTensors forward{.q = rows(), .k = pages(), .v = pages(), .o = rows()};
    const Workspace workspace = {addresses.next(), plan->workspace_bytes()};
    struct Blocks {
        int few, merge, many; // 0: there is no such launch
        bool operator==(const Blocks&) const = default;
    };
    const auto launched = [&] {
        (void)take_recorded();
        REQUIRE(kernel->forward(*plan, forward, {}, workspace));
        const std::string text = take_recorded();
        const auto blocks = [&](const std::string& name) {
            const std::size_t at = text.find(name + " of ");
            if (at == std::string::npos) return 0;
            return std::atoi(text.c_str() + text.find(" grid ", at) + 6);
        };
        return Blocks{blocks("flexc_forward_few"), blocks("flexc_merge_parts"),
                      blocks("flexc_forward_sm90")};
    };
    const auto update = [&](const Numbers& cu_q, const Numbers& used) {
        REQUIRE(kernel->update(*plan, lengths_of(cu_q, used)));
    };
    constexpr int kMostParts = kPartBlocks + kRequests * kKvHeads;
    // A request with one part has nothing to merge.
    CHECK(launched() == Blocks{kRequests * kKvHeads, 0, 0});
    // One has several parts of four rows, each of which gets a block of its own.
    update(ones, many);
    const Blocks of_many = launched();
    CHECK((of_many.few > 2 * kRequests * kKvHeads && of_many.few < kMostParts));
    CHECK(of_many.merge == kRequests * kKvHeads * 4);
    CHECK(of_many.many == 0);
    // Another has more queries than few.
    update(some, many);
    CHECK(launched().many > 0);
    update(none, many);
    CHECK(launched() == Blocks{0, 0, 0});
    // Whoever launches a graph may have changed the lengths.
    ::setenv("FLEXC_RECORDED_CAPTURES", "1", 1);
    const Blocks captured = launched();
    ::unsetenv("FLEXC_RECORDED_CAPTURES");
    CHECK(captured.few == kMostParts);
    CHECK((captured.merge > of_many.merge && captured.many > 0));
    // So may one that updates the plan from the device's memory, after the host has.
    LengthTensors tensors;
    tensors.cu_seqlens_q = tensor(addresses, DType::i32, {kRequests + 1});
    tensors.seqused_k = tensor(addresses, DType::i32, {kRequests});
    tensors.page_table = tensor(addresses, DType::i32, {kRequests * kWidth});
    REQUIRE(kernel->update(*plan, tensors));
    CHECK(launched() == captured);
    update(ones, few);
    CHECK(launched() == captured);
}

TEST_CASE("a call that is given lengths launches what an update from them does, before its own") {
    REQUIRE_MESSAGE(std::getenv("FLEXC_LIBCUDA") != nullptr, "run it by ctest");
    CompileOptions options = options_of({"", 90, DType::bf16, 64}, {"", "score"});
    options.query_layout = options.key_layout = Layout::ragged;
    // A mask that has a block mask, which is of the new lengths too.
    const auto kernel = compile("mask_mod = (q_idx + kv_idx) % 3 == 0", options);
    REQUIRE_MESSAGE(kernel, kernel.error().message);
    const Sizes n{.batch = 3, .heads = 8, .kv_heads = 2, .q_len = 40, .kv_len = 300};
    Addresses addresses;
    const auto rows = [&](std::int64_t count, std::int64_t heads) {
        return tensor(addresses, DType::bf16, {count, heads, 64});
    };
    const auto queries = [&] { return rows(100, n.heads); };
    const auto keys = [&] { return rows(500, n.kv_heads); };
    ForwardTensors forward{.q = queries(),
                           .k = keys(),
                           .v = keys(),
                           .o = queries(),
                           .lse = tensor(addresses, DType::f32, {100, n.heads})};
    BackwardTensors backward{.q = forward.q,
                             .k = forward.k,
                             .v = forward.v,
                             .o = forward.o,
                             .lse = forward.lse,
                             .d_out = queries(),
                             .dq = queries(),
                             .dk = keys(),
                             .dv = keys()};
    const std::vector<std::int32_t> cu_q = {0, 1, 2, 2}, cu_k = {0, 300, 400, 420};
    Lengths lengths;
    lengths.cu_seqlens_q = cu_q;
    lengths.cu_seqlens_k = cu_k;
    const auto plan =
        kernel->plan(n, {}, {}, {.lengths = lengths, .forward = &forward, .backward = &backward});
    REQUIRE_MESSAGE(plan, plan.error().message);
    const Workspace workspace = {addresses.next(), plan->workspace_bytes()};
    LengthTensors given;
    given.cu_seqlens_q = given.cu_seqlens_k = tensor(addresses, DType::i32, {n.batch + 1});
    const auto recorded_of = [&](const Result<void>& done) {
        REQUIRE_MESSAGE(done, done.error().message);
        return take_recorded();
    };
    const auto run_forward = [&] {
        return recorded_of(kernel->forward(*plan, forward, {}, workspace));
    };
    const auto run_backward = [&] {
        return recorded_of(kernel->backward(*plan, backward, {}, {}, workspace));
    };
    (void)take_recorded();
    forward.lengths = backward.lengths = &given;
    const std::string of_forward = run_forward(), of_backward = run_backward();
    const std::string update = recorded_of(kernel->update(*plan, given));
    CHECK(update.find("flexc_read_lengths") != std::string::npos);
    forward.lengths = backward.lengths = nullptr;
    CHECK(of_forward == update + run_forward());
    CHECK(of_backward == update + run_backward());
    // Nothing is launched for a call that is refused.
    LengthTensors some;
    some.cu_seqlens_k = given.cu_seqlens_k;
    forward.lengths = &some;
    const auto missing = kernel->forward(*plan, forward, {}, workspace);
    REQUIRE(!missing);
    CHECK(missing.error().message.find("cu_seqlens_q: missing") != std::string::npos);
    forward.lengths = &given;
    forward.o = {};
    CHECK(!kernel->forward(*plan, forward, {}, workspace));
    CHECK(take_recorded().empty());
}

TEST_CASE("plans are what the record says") {
    std::string now;
    for (const Setting& setting : kSettings) {
        const bool is_plain = setting.head_dim == 64 &&
                              setting.backward == BackwardKernel::automatic &&
                              setting.gradient_type == GradientType::f32;
        if (!is_plain) continue; // their launches say enough
        const std::string arch = setting.arch == 90 ? "sm_90a" : formatted("sm_{}", setting.arch);
        for (const Program& program : kPrograms) {
            const auto text = explain(program.text, "plan", options_of(setting, program), arch);
            REQUIRE_MESSAGE(text, text.error().message);
            now += formatted("# {}, {}\n{}", program.name, setting.name, *text);
        }
    }
    compare(kPlans, now);
}
