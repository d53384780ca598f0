// Programs that are compiled for the CPU and run on a few rows, in memory with guard pages.
#include <array>
#include <map>
#include <optional>

#include "flexc/flexc.h"
#include "fuzz.h"
#include "guarded_tensors.h"

namespace flexc::fuzz {

namespace {

// What LLVM gets within seconds; larger programs are for the target that compiles nothing.
constexpr std::size_t kMostText = 1500;
constexpr std::int64_t kMostElements = 20'000;

// The extents of a buffer; nothing where it would be large.
std::optional<std::vector<std::int64_t>>
shape_of(const BufferInfo& buffer, std::map<std::string, std::int64_t>& sizes, Random& random) {
    std::vector<std::int64_t> shape;
    std::int64_t elements = 1;
    for (const std::string& dim : buffer.dims) {
        const bool is_number = dim.find_first_not_of("0123456789") == std::string::npos;
        if (!is_number && !sizes.contains(dim)) sizes[dim] = random.integer(1, 9);
        if (is_number && dim.size() > 5) return {};
        shape.push_back(is_number ? std::stoll(dim) : sizes[dim]);
        elements *= shape.back();
        if (elements < 1 || elements > kMostElements) return {};
    }
    return shape;
}

CompileOptions kernel_options(Random& random) {
    CompileOptions options;
    options.source_name = "fuzz.flex";
    options.dtype = random.pick(std::array{DType::f32, DType::bf16, DType::f16});
    options.head_dim = random.pick(std::array{8, 16, 1, 5, 33});
    options.head_dim_v = random.chance(20) ? 3 : 0;
    options.device = Device::cpu();
    options.backward = random.chance(60);
    options.deterministic = random.chance(20);
    options.report_out_of_range = random.chance(20);
    options.tile_source =
        random.pick(std::array{TileSource::automatic, TileSource::ranges, TileSource::block_mask});
    options.gradient_type = random.chance(30) ? GradientType::buffer : GradientType::f32;
    options.cache.memory = false;
    options.cache.disk = false;
    return options;
}

template <typename T> void require_done(const Result<T>& result, const char* what) {
    require(result.has_value(), std::string(what) + ": " + (result ? "" : result.error().message));
}

void run_kernels(std::string_view input) {
    if (input.size() > kMostText) return;
    Random random(seed_of(input));
    const CompileOptions options = kernel_options(random);
    const auto signature = flexc::check(input, options);
    if (!signature) return;
    const bool is_hostile = random.chance(60);
    const Sizes sizes = {.batch = random.integer(1, 2),
                         .heads = random.pick(std::array{2, 4}),
                         .kv_heads = random.integer(1, 2),
                         .q_len = random.pick(std::array{1, 5, 17, 70}),
                         .kv_len = random.pick(std::array{1, 6, 19, 130})};
    std::map<std::string, std::int64_t> extents = {
        {"B", sizes.batch},
        {"H", sizes.heads},
        {"H_KV", sizes.kv_heads},
        {"Q_LEN", sizes.q_len},
        {"KV_LEN", sizes.kv_len},
        {"D", options.head_dim},
        {"DV", options.head_dim_v == 0 ? options.head_dim : options.head_dim_v}};
    Tensors tensors(random, is_hostile);
    std::vector<NamedTensor> buffers, gradients;
    for (const BufferInfo& buffer : signature->buffers) {
        const auto shape = shape_of(buffer, extents, random);
        if (!shape) return;
        buffers.push_back({buffer.name, tensors.input(buffer.dtype, *shape)});
        if (!buffer.grad) continue;
        const bool is_own = options.gradient_type == GradientType::buffer;
        gradients.push_back(
            {buffer.name, tensors.output(is_own ? buffer.dtype : DType::f32, *shape)});
    }
    std::vector<ParamValue> params;
    for (const ParamInfo& param : signature->params)
        if (!param.has_default || random.chance(30))
            params.push_back({param.name, param.type == "f32" ? real(random, is_hostile)
                                                              : random.integer(0, 1) * 1.0});

    const auto kernel = compile(input, options);
    if (!kernel && kernel.error().code == ErrorCode::limit) return;
    require_done(kernel, "compile");
    count_accepted();
    const PlanOptions plan_options = {.params = params, .accumulate_gradients = random.chance(10)};
    const bool early = random.chance(50); // the plan's block mask, or one in the workspace
    const auto plan =
        kernel->plan(sizes, early ? buffers : std::vector<NamedTensor>(), {}, plan_options);
    if (!plan && plan.error().code == ErrorCode::limit) return;
    // A size that only buffers bind is not known without them.
    if (!plan && !early) return;
    require_done(plan, "plan");
    const auto q_rows = std::vector{sizes.batch, sizes.heads, sizes.q_len};
    const auto shape = [&](std::int64_t heads, std::int64_t rows, std::int64_t columns) {
        return std::vector<std::int64_t>{sizes.batch, heads, rows, columns};
    };
    const std::int64_t d = extents["D"], dv = extents["DV"];
    const DType type = options.dtype;
    const DType out = plan_options.accumulate_gradients ? DType::f32 : type;
    const TensorView q = tensors.input(type, shape(sizes.heads, sizes.q_len, d)),
                     k = tensors.input(type, shape(sizes.kv_heads, sizes.kv_len, d)),
                     v = tensors.input(type, shape(sizes.kv_heads, sizes.kv_len, dv)),
                     o = tensors.output(type, shape(sizes.heads, sizes.q_len, dv)),
                     lse = tensors.output(DType::f32, q_rows);
    const Workspace workspace = tensors.workspace(plan->workspace_bytes());
    require_done(kernel->forward(*plan, {q, k, v, o, lse}, buffers, workspace), "forward");
    if (options.report_out_of_range) require_done(kernel->out_of_range(), "out_of_range");
    if (!options.backward) return;
    const TensorView d_out = tensors.input(type, shape(sizes.heads, sizes.q_len, dv)),
                     dq = tensors.output(out, shape(sizes.heads, sizes.q_len, d)),
                     dk = tensors.output(out, shape(sizes.kv_heads, sizes.kv_len, d)),
                     d_v = tensors.output(out, shape(sizes.kv_heads, sizes.kv_len, dv));
    const TensorView d_lse = random.chance(30) ? tensors.input(DType::f32, q_rows) : TensorView{};
    require_done(kernel->backward(*plan, {q, k, v, o, lse, d_out, d_lse, dq, dk, d_v}, buffers,
                                  gradients, workspace),
                 "backward");
}

} // namespace

const Target kKernels = {.name = "kernels",
                         .meaning = "programs on the CPU, in memory with guards",
                         .cpu_seconds = 20,
                         .corpus = program_corpus,
                         .mutate = mutate_text,
                         .run = run_kernels};

} // namespace flexc::fuzz
