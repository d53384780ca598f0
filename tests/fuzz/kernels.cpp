// Programs that are compiled for the CPU and run on a few rows, in memory with guard pages.
#include <array>
#include <map>
#include <optional>

#include "flexc/flexc.h"
#include "fuzz.h"
#include "guarded_tensors.h"
#include "requests.h"

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
    if (random.chance(40)) {
        options.query_layout =
            random.pick(std::array{Layout::ragged, Layout::ragged, Layout::dense});
        options.key_layout = random.pick(std::array{Layout::ragged, Layout::paged, Layout::dense});
    }
    if (random.chance(10))
        options.kv_dtype = random.pick(std::array{DType::e4m3, DType::e5m2, DType::i8});
    if (random.chance(20))
        options.sink = random.pick(std::array{"0.5", "h * 0.25 - b", "tanh(q_idx * 0.1)"});
    options.part_of_heads = random.chance(15);
    options.batch_invariant = random.chance(10);
    options.count_visible = random.chance(5);
    options.max_scores = random.chance(20);
    options.cache.memory = false;
    options.cache.disk = false;
    return options;
}

template <typename T> void require_done(const Result<T>& result, const char* what) {
    require(result.has_value(), std::string(what) + ": " + (result ? "" : result.error().message));
}

bool has_requests(const CompileOptions& options) {
    return options.query_layout != Layout::dense || options.key_layout != Layout::dense;
}

// Shapes of a call's tensors.
struct Shapes {
    const Sizes& sizes;
    const std::optional<Requests>& requests;

    std::vector<std::int64_t> q(std::int64_t columns) const {
        if (requests) return requests->q_shape(columns);
        return {sizes.batch, sizes.heads, sizes.q_len, columns};
    }
    std::vector<std::int64_t> rows() const {
        if (requests) return requests->q_rows_shape();
        return {sizes.batch, sizes.heads, sizes.q_len};
    }
    std::vector<std::int64_t> kv(std::int64_t columns) const {
        if (requests) return requests->kv_shape(columns);
        return {sizes.batch, sizes.kv_heads, sizes.kv_len, columns};
    }
    std::vector<std::int64_t> scale(Random& random) const {
        if (random.chance(30)) return {};
        if (random.chance(30)) return {sizes.kv_heads};
        if (requests) return requests->scale_shape();
        return {sizes.batch, random.chance(30) ? 1 : sizes.kv_heads};
    }
};

// The whole that a call has some heads, or some rows, of.
void take_part(const CompileOptions& options, const Sizes& sizes, PlanOptions& plan,
               std::map<std::string, std::int64_t>& extents, Random& random) {
    if (options.part_of_heads) {
        const std::int64_t group = sizes.heads / sizes.kv_heads, before = random.integer(0, 2);
        plan.head_offset = before * group;
        plan.global_kv_heads = extents["H_KV"] = before + sizes.kv_heads + random.integer(0, 2);
        plan.global_heads = extents["H"] = extents["H_KV"] * group;
    }
    if (has_requests(options) || random.chance(70)) return;
    plan.q_offset = random.pick(std::array{0, 1, 63, 200});
    plan.kv_offset = random.pick(std::array{0, 1, 63, 200});
    plan.global_q_len = extents["Q_LEN"] = plan.q_offset + sizes.q_len + random.integer(0, 70);
    plan.global_kv_len = extents["KV_LEN"] = plan.kv_offset + sizes.kv_len + random.integer(0, 70);
}

// Other requests take the place of those of the plan; between them, what may be none.
void replace_requests(const Kernel& kernel, const Plan& plan, std::optional<Requests>& requests,
                      Random& random) {
    Requests next(kernel.options().query_layout, kernel.options().key_layout, plan.sizes(), random);
    Requests damaged = next;
    damaged.damage(random);
    const auto updated = kernel.update(plan, damaged.lengths());
    require(updated || updated.error().code != ErrorCode::internal, "an update fails");
    if (!updated && random.chance(50)) return; // the plan has the requests that it had
    const auto done = kernel.update(plan, next.lengths());
    require_done(done, "update");
    requests = std::move(next);
}

void run_kernels(std::string_view input) {
    if (input.size() > kMostText) return;
    Random random(seed_of(input));
    const CompileOptions given = kernel_options(random);
    const auto signature = flexc::check(input, given);
    if (!signature) return;
    const bool is_hostile = random.chance(60);
    const bool may_be_empty = has_requests(given) && random.chance(10);
    const Sizes sizes = {.batch = random.integer(may_be_empty ? 0 : 1, has_requests(given) ? 4 : 2),
                         .heads = random.pick(std::array{2, 4}),
                         .kv_heads = random.integer(1, 2),
                         .q_len = random.pick(std::array{may_be_empty ? 0 : 1, 5, 17, 70}),
                         .kv_len = random.pick(std::array{may_be_empty ? 0 : 1, 6, 19, 130})};
    const std::int64_t d = given.head_dim, dv = given.head_dim_v == 0 ? d : given.head_dim_v;
    std::map<std::string, std::int64_t> extents = {{"B", sizes.batch},
                                                   {"H", sizes.heads},
                                                   {"H_KV", sizes.kv_heads},
                                                   {"Q_LEN", sizes.q_len},
                                                   {"KV_LEN", sizes.kv_len},
                                                   {"D", d},
                                                   {"DV", dv}};
    // These are added to f32.
    const bool accumulates = given.gradient_type == GradientType::f32 && random.chance(10);
    PlanOptions plan_options = {.accumulate_gradients = accumulates};
    take_part(given, sizes, plan_options, extents, random);
    Tensors tensors(random, is_hostile);
    std::vector<NamedTensor> buffers, gradients;
    for (const BufferInfo& buffer : signature->buffers) {
        const auto shape = shape_of(buffer, extents, random);
        if (!shape) return;
        buffers.push_back({buffer.name, tensors.input(buffer.dtype, *shape)});
        if (!buffer.grad) continue;
        const bool is_own = given.gradient_type == GradientType::buffer;
        gradients.push_back(
            {buffer.name, tensors.output(is_own ? buffer.dtype : DType::f32, *shape)});
    }
    std::vector<ParamValue> params;
    for (const ParamInfo& param : signature->params)
        if (!param.has_default || random.chance(30))
            params.push_back({param.name, param.type == "f32"
                                              ? real(random, is_hostile)
                                              : static_cast<double>(random.integer(0, 1))});
    plan_options.params = params;

    const auto kernel = compile(input, given);
    if (!kernel && kernel.error().code == ErrorCode::limit) return;
    require_done(kernel, "compile");
    count_accepted();
    const CompileOptions& options = kernel->options(); // what has no backward says so
    std::optional<Requests> requests;
    if (has_requests(options)) {
        requests.emplace(options.query_layout, options.key_layout, sizes, random);
        plan_options.lengths = requests->lengths();
    }
    const bool early = random.chance(50); // the plan's block mask, or one in the workspace
    const auto plan =
        kernel->plan(sizes, early ? buffers : std::vector<NamedTensor>(), {}, plan_options);
    if (!plan && plan.error().code == ErrorCode::limit) return;
    // A size that only buffers bind is not known without them.
    if (!plan && !early) return;
    require_done(plan, "plan");
    if (requests && random.chance(50)) replace_requests(*kernel, *plan, requests, random);

    const Shapes shapes{sizes, requests};
    const DType type = options.dtype, key_type = options.kv_dtype.value_or(type);
    const DType out = plan_options.accumulate_gradients ? DType::f32 : type;
    const TensorView q = tensors.input(type, shapes.q(d)),
                     k = tensors.input(key_type, shapes.kv(d)),
                     v = tensors.input(key_type, shapes.kv(dv)),
                     o = tensors.output(type, shapes.q(dv)),
                     lse = tensors.output(DType::f32, shapes.rows());
    ForwardTensors forward = {.q = q, .k = k, .v = v, .o = o, .lse = lse};
    if (options.kv_dtype)
        for (TensorView* scale : {&forward.k_scale, &forward.v_scale})
            if (random.chance(80)) *scale = tensors.input(DType::f32, shapes.scale(random));
    if (options.max_scores && random.chance(80))
        forward.max_scores = tensors.output(DType::f32, shapes.rows());
    const Workspace workspace = tensors.workspace(plan->workspace_bytes());
    require_done(kernel->forward(*plan, forward, buffers, workspace), "forward");
    if (options.report_out_of_range) require_done(kernel->out_of_range(), "out_of_range");
    if (!options.backward) return;
    const TensorView d_out = tensors.input(type, shapes.q(dv)),
                     dq = tensors.output(out, shapes.q(d)), dk = tensors.output(out, shapes.kv(d)),
                     d_v = tensors.output(out, shapes.kv(dv));
    const TensorView d_lse =
        random.chance(30) ? tensors.input(DType::f32, shapes.rows()) : TensorView{};
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
