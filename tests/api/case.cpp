#include "api/case.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string_view>

#include <doctest/doctest.h>

#include "api/backend.h"
#include "api/context.h"
#include "api/tensor.h"
#include "attention_oracle.h"
#include "front/compile_text.h"
#include "support/text.h"

namespace flexc::test {

namespace {

struct Tolerance {
    double output, log_sum_exp, gradient, zero;
};

Tolerance tolerance(DType dtype) {
    if (dtype == DType::f32) return {1e-5, 1e-4, 5e-5, 2e-5};
    if (dtype == DType::f16) return {1.5e-3, 2e-3, 3e-3, 5e-3};
    return {6e-3, 2e-3, 1.2e-2, 3e-2};
}

double squares(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values)
        sum += value * value;
    return sum;
}

// Relative in the 2-norm; where the truth is zero, the root mean square against `zero`. A sum whose
// terms cancel inherits their rounding: a tenth of the tolerance holds for `terms`, the sum of
// their absolute values.
std::string compare(const char* what, const std::vector<double>& got,
                    const std::vector<double>& want, double relative, double zero,
                    const std::vector<double>& terms = {}) {
    double error = 0, norm = squares(terms) * 0.01;
    for (std::size_t i = 0; i < want.size(); ++i) {
        if (std::isnan(got[i])) return formatted("{}: NaN at {}\n", what, i);
        if (std::isinf(got[i]) || std::isinf(want[i])) {
            if (got[i] != want[i])
                return formatted("{}: {} where {} is right, at {}\n", what, got[i], want[i], i);
            continue;
        }
        error += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    const auto count = static_cast<double>(want.size());
    if (norm / count < 1e-12) {
        const double rms = std::sqrt(error / count);
        if (rms <= zero) return "";
        return formatted("{}: root mean square {:.2e} where zero is right\n", what, rms);
    }
    const double ratio = std::sqrt(error / norm);
    if (ratio <= relative) return "";
    return formatted("{}: relative error {:.2e}, allowed {:.2e}\n", what, ratio, relative);
}

// Of lse, or of rows' largest scores.
std::string compare_rows(const char* what, const std::vector<double>& got,
                         const std::vector<double>& want, double absolute) {
    for (std::size_t i = 0; i < want.size(); ++i) {
        // From here on a kernel may say the largest float.
        if (std::isfinite(want[i]) && std::abs(want[i]) >= 0x1p120) {
            if (std::isfinite(got[i]) && std::abs(got[i]) >= 0x1p120 && got[i] * want[i] > 0)
                continue;
            return formatted("{}: {} where {} is right, at {}\n", what, got[i], want[i], i);
        }
        const double allowed = absolute + kF32Rounding * std::abs(want[i]);
        if (std::isinf(want[i]) ? got[i] != want[i] : !(std::abs(got[i] - want[i]) <= allowed))
            return formatted("{}: {} where {} is right, at {}\n", what, got[i], want[i], i);
    }
    return "";
}

} // namespace

namespace {

int value_dim(const Case& one) { return one.head_dim_v == 0 ? one.head_dim : one.head_dim_v; }

CompileOptions options_of(const Case& one, Device device) {
    return {.dtype = one.dtype,
            .head_dim = one.head_dim,
            .head_dim_v = value_dim(one),
            .device = device,
            .backward = one.backward,
            .forward_kernel = one.forward_kernel,
            .backward_kernel = one.backward_kernel,
            .tile_source = one.tile_source,
            .gradient_type = one.gradient_type,
            .deterministic = one.deterministic,
            .max_scores = one.max_scores,
            .part_of_heads = one.global_heads != 0};
}

// Of a program without a text, as compile() makes one.
Result<Kernel> compile_program(const ir::Program& program, const CompileOptions& given) {
    const auto options = api::complete(given);
    if (!options) return options.error();
    const support::Watch watch = api::Context::instance().watch(*options);
    auto made = api::make_kernel({dsl::Source("case", ""), program, ""}, *options, watch,
                                 std::chrono::steady_clock::now());
    if (!made) return made.error();
    return Kernel(made->value);
}

// compile_offline() of a program without a text.
std::string build_offline(const ir::Program& program, const CompileOptions& given,
                          const char* arch) {
    const auto options = api::complete(given);
    if (!options) return options.error().message;
    const auto mod = api::lower_program({dsl::Source("case", ""), program, ""}, *options);
    if (!mod) return mod.error().message;
    api::Context& context = api::Context::instance();
    const auto built = api::build_cubins(
        *mod, *options, arch, {}, *context.stores.get(options->cache), context.watch(*options));
    return built ? "" : built.error().message;
}

struct Comparison {
    std::string problems;
    bool is_near_kink = false; // some slope is another one where f32 rounds the score
};

Comparison compare_one_draw(const Kernel& kernel, const ir::Program& program, const Case& one,
                            Device device, std::uint32_t seed) {
    const int head_dim_v = value_dim(one);
    std::mt19937 random(seed);
    std::normal_distribution<double> normal;
    auto draw = [&](std::int64_t count, DType dtype, double spread) {
        std::vector<double> values(static_cast<std::size_t>(count));
        for (double& value : values)
            value = rounded(dtype, normal(random) * spread);
        return values;
    };
    // Multiples of 1/4, so that f32 holds their products and sums of these.
    auto draw_factors = [&](std::int64_t count) {
        std::vector<double> values = draw(count, one.dtype, 1);
        if (one.large_scores)
            for (double& value : values)
                value = std::round(4 * value) / 4;
        return values;
    };
    Problem p{.batch = one.batch,
              .heads = one.heads,
              .kv_heads = one.kv_heads,
              .q_len = one.q_len,
              .kv_len = one.kv_len,
              .head_dim = one.head_dim,
              .head_dim_v = head_dim_v,
              .q_offset = one.q_offset,
              .kv_offset = one.kv_offset,
              .head_offset = one.head_offset,
              .kv_head_offset = one.global_heads == 0
                                    ? 0
                                    : one.head_offset / (one.global_heads / one.global_kv_heads),
              .scale = one.scale != 0
                           ? one.scale
                           : static_cast<float>(1 / std::sqrt(static_cast<double>(one.head_dim))),
              .backward = one.backward,
              .rounds_scores = one.large_scores};
    const std::int64_t q_rows = p.batch * p.heads * p.q_len;
    const std::int64_t kv_rows = p.batch * p.kv_heads * p.kv_len;
    p.q = draw_factors(q_rows * p.head_dim);
    p.k = draw_factors(kv_rows * p.head_dim);
    constexpr std::int64_t kDifferentKeys = 7;
    if (one.large_scores)
        for (std::int64_t i = kDifferentKeys * p.head_dim; i < kv_rows * p.head_dim; ++i)
            p.k[static_cast<std::size_t>(i)] =
                p.k[static_cast<std::size_t>(i - kDifferentKeys * p.head_dim)];
    p.v = draw(kv_rows * p.head_dim_v, one.dtype, 1);
    p.d_out = draw(q_rows * p.head_dim_v, one.dtype, 1);
    if (one.with_d_lse) p.d_lse = draw(q_rows, DType::f32, 1);
    p.sizes = {p.batch,    p.heads,     p.kv_heads, p.q_len + p.q_offset, p.kv_len + p.kv_offset,
               p.head_dim, p.head_dim_v};
    if (one.global_heads != 0) {
        p.sizes[ir::kH] = one.global_heads;
        p.sizes[ir::kHKv] = one.global_kv_heads;
    }
    for (std::size_t i = ir::kStandardSizes; i < program.sizes.size(); ++i)
        p.sizes.push_back(one.dims.at(program.sizes[i]));
    std::vector<ParamValue> params;
    for (const ir::Param& param : program.params) {
        const auto given = one.params.find(param.name);
        const double value = given == one.params.end() ? param.default_value : given->second;
        if (given != one.params.end()) params.push_back({param.name, value});
        p.params.push_back({.boolean = value != 0,
                            .integer = static_cast<std::int64_t>(value),
                            .real = static_cast<float>(value)});
    }
    std::vector<Tensor> buffer_tensors, gradient_tensors;
    std::vector<NamedTensor> buffers, gradients;
    for (const ir::Buffer& buffer : program.buffers) {
        std::vector<std::int64_t> shape;
        std::int64_t count = 1;
        for (const ir::Dim& dim : buffer.dims) {
            shape.push_back(dim.is_constant() ? dim.constant : p.sizes[dim.size]);
            count *= shape.back();
        }
        ir::BufferData data{.extents = shape};
        std::vector<double> values;
        if (is_float(buffer.dtype)) {
            values = draw(count, buffer.dtype, 0.5);
            if (const auto rule = one.reals.find(buffer.name); rule != one.reals.end())
                for (std::int64_t i = 0; i < count; ++i)
                    values[static_cast<std::size_t>(i)] = rounded(buffer.dtype, rule->second(i));
            data.reals = values;
        } else {
            const auto rule = one.integers.find(buffer.name);
            for (std::int64_t i = 0; i < count; ++i) {
                std::int64_t value = rule == one.integers.end() ? i % 5 : rule->second(i);
                if (buffer.dtype == DType::boolean) value = value != 0;
                data.integers.push_back(value);
                values.push_back(static_cast<double>(value));
            }
        }
        p.buffers.push_back(std::move(data));
        buffer_tensors.emplace_back(device, buffer.dtype, shape).set(values);
        buffers.push_back({buffer.name, buffer_tensors.back().view()});
        if (!buffer.grad) continue;
        gradient_tensors.emplace_back(
            device, one.gradient_type == GradientType::f32 ? DType::f32 : buffer.dtype, shape);
        gradients.push_back({buffer.name, gradient_tensors.back().view()});
    }
    const DType out = one.f32_outputs ? DType::f32 : one.dtype;
    auto q_shape = [&](std::int64_t d) {
        return std::vector<std::int64_t>{p.batch, p.heads, p.q_len, d};
    };
    auto kv_shape = [&](std::int64_t d) {
        return std::vector<std::int64_t>{p.batch, p.kv_heads, p.kv_len, d};
    };
    const std::int64_t padding = one.strided ? one.padding : 0;
    Tensor q(device, one.dtype, q_shape(p.head_dim), padding);
    Tensor k(device, one.dtype, kv_shape(p.head_dim), padding);
    Tensor v(device, one.dtype, kv_shape(p.head_dim_v), padding);
    Tensor d_out(device, one.dtype, q_shape(p.head_dim_v), padding);
    Tensor o(device, out, q_shape(p.head_dim_v), padding);
    Tensor dq(device, out, q_shape(p.head_dim), padding);
    Tensor dk(device, out, kv_shape(p.head_dim), padding);
    Tensor dv(device, out, kv_shape(p.head_dim_v), padding);
    Tensor lse(device, DType::f32, {p.batch, p.heads, p.q_len});
    Tensor d_lse(device, DType::f32, {p.batch, p.heads, p.q_len});
    Tensor max_scores(device, DType::f32, {p.batch, p.heads, p.q_len});
    q.set(p.q);
    k.set(p.k);
    v.set(p.v);
    d_out.set(p.d_out);
    if (one.with_d_lse) d_lse.set(p.d_lse);

    const ForwardTensors forward = {.q = q.view(),
                                    .k = k.view(),
                                    .v = v.view(),
                                    .o = o.view(),
                                    .lse = lse.view(),
                                    .max_scores =
                                        one.max_scores ? max_scores.view() : TensorView{}};
    const BackwardTensors backward = {q.view(),
                                      k.view(),
                                      v.view(),
                                      o.view(),
                                      lse.view(),
                                      d_out.view(),
                                      one.with_d_lse ? d_lse.view() : TensorView{},
                                      dq.view(),
                                      dk.view(),
                                      dv.view()};
    auto plan = kernel.plan(
        {.batch = p.batch,
         .heads = p.heads,
         .kv_heads = p.kv_heads,
         .q_len = p.q_len,
         .kv_len = p.kv_len},
        buffers, {},
        {.scale = one.scale != 0 ? std::optional<double>(one.scale) : std::nullopt,
         .params = params,
         .q_offset = p.q_offset,
         .kv_offset = p.kv_offset,
         .head_offset = one.head_offset,
         .global_heads = one.global_heads == 0 ? std::nullopt : std::optional(one.global_heads),
         .global_kv_heads =
             one.global_heads == 0 ? std::nullopt : std::optional(one.global_kv_heads),
         .accumulate_gradients = one.accumulates,
         .forward = &forward,
         .backward = one.backward ? &backward : nullptr});
    if (!plan) return {plan.error().message};
    auto memory = DeviceMemory::allocate(device, std::max<std::size_t>(plan->workspace_bytes(), 1));
    if (!memory) return {memory.error().message};
    (void)memory->fill(0xff);
    const Workspace workspace{memory->data(), plan->workspace_bytes()};
    if (auto done = kernel.forward(*plan, forward, buffers, workspace); !done)
        return {done.error().message};
    constexpr double kThere = 0.5; // what gradients are added to
    const auto prepare = [&](Tensor& gradient) {
        if (one.accumulates) gradient.set(std::vector<double>(gradient.get().size(), kThere));
    };
    const auto added = [&](Tensor& gradient) {
        std::vector<double> values = gradient.get();
        for (double& value : values)
            value -= one.accumulates ? kThere : 0;
        return values;
    };
    for (Tensor* gradient : {&dq, &dk, &dv})
        prepare(*gradient);
    for (Tensor& gradient : gradient_tensors)
        prepare(gradient);
    std::vector<std::vector<std::byte>> before;
    for (int run = 0; one.backward && run < one.runs; ++run) {
        std::vector<std::vector<std::byte>> last;
        if (run > 0) {
            for (Tensor* result : {&dq, &dk, &dv})
                last.push_back(result->take());
            for (Tensor& result : gradient_tensors)
                last.push_back(result.take());
            if (run > 1 && last != before)
                return {formatted("run {} gave other bytes than the one before\n", run - 1)};
            before = std::move(last);
        }
        (void)memory->fill(0xff);
        if (auto done = kernel.backward(*plan, backward, buffers, gradients, workspace); !done)
            return {done.error().message};
    }
    if (auto done = synchronize(device); !done) return {done.error().message};

    const Answer want = attention_oracle(program, p);
    const Tolerance allowed = tolerance(one.dtype);
    std::string problems = compare("o", o.get(), want.o, allowed.output, allowed.zero) +
                           compare_rows("lse", lse.get(), want.lse, allowed.log_sum_exp);
    if (one.max_scores)
        problems +=
            compare_rows("max_scores", max_scores.get(), want.max_scores, allowed.log_sum_exp);
    const bool is_near_kink = want.margin < kF32Rounding;
    if (!one.backward) return {problems, is_near_kink};
    problems +=
        compare("dq", added(dq), want.dq, allowed.gradient, allowed.zero, want.dq_absolute) +
        compare("dk", added(dk), want.dk, allowed.gradient, allowed.zero, want.dk_absolute) +
        compare("dv", added(dv), want.dv, allowed.gradient, allowed.zero);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        const std::string label = formatted("d.{}", gradients[i].name);
        problems +=
            compare(label.c_str(), added(gradient_tensors[i]),
                    want.d_buffers.at(std::string(gradients[i].name)), allowed.gradient,
                    allowed.zero, want.d_buffers_absolute.at(std::string(gradients[i].name)));
    }
    return {problems, is_near_kink};
}

// With other data where these are near a kink: either slope is right there.
std::string compare_with_definition(const Kernel& kernel, const ir::Program& program,
                                    const Case& one, Device device, std::uint32_t seed) {
    constexpr std::uint32_t kDraws = 4;
    Comparison last;
    for (std::uint32_t draw = 0; draw < kDraws; ++draw) {
        last = compare_one_draw(kernel, program, one, device, seed + draw);
        if (last.problems.empty() || !last.is_near_kink) break;
    }
    return last.problems;
}

} // namespace

std::string run_case(const Case& one, Device device, std::uint32_t seed) {
    const CompileOptions options = options_of(one, device);
    // Fills the cache on disk with what a machine with such a GPU will ask of it, and runs nothing.
    if (const char* arch = std::getenv("FLEXC_TEST_COMPILE")) {
        const auto compiled = compile_offline(one.text, options, arch, {.any_layout = one.strided});
        return compiled ? "" : compiled.error().message;
    }
    const auto kernel = compile(one.text, options);
    if (!kernel) return kernel.error().message;
    const front::Output front = front::compile_text(
        {.source = dsl::Source("case", one.reference.empty() ? one.text : one.reference)});
    if (!front.program) return front.rendered;
    return compare_with_definition(*kernel, *front.program, one, device, seed);
}

std::string run_program(const ir::Program& program, const Case& one, Device device,
                        std::uint32_t seed) {
    CompileOptions options = options_of(one, device);
    options.cache.disk = false; // nobody will ask for it again
    if (const char* arch = std::getenv("FLEXC_TEST_COMPILE"))
        return build_offline(program, options, arch);
    const auto kernel = compile_program(program, options);
    if (!kernel) return kernel.error().message;
    return compare_with_definition(*kernel, program, one, device, seed);
}

std::vector<Device> test_devices() {
    if (const char* only = std::getenv("FLEXC_TEST_DEVICE")) {
        if (std::string_view(only) != "cuda" && std::string_view(only) != "cpu")
            FAIL("FLEXC_TEST_DEVICE is neither cuda nor cpu: ", only);
        return {std::string_view(only) == "cuda" ? Device::cuda(0) : Device::cpu()};
    }
    std::vector<Device> devices;
#if FLEXC_WITH_CPU
    devices.push_back(Device::cpu());
#endif
    if (default_device().kind == Device::Kind::cuda) devices.push_back(Device::cuda(0));
    return devices;
}

std::string name(Device device) { return device.kind == Device::Kind::cuda ? "cuda" : "cpu"; }

void check_everywhere(const Case& one) {
    static std::random_device source;
    const std::uint32_t seed = source();
    for (const Device device : test_devices()) {
        CAPTURE(one.text);
        CAPTURE(seed);
        CAPTURE(name(device));
        CAPTURE(std::string(flexc::name(one.dtype)));
        CHECK(run_case(one, device, seed) == "");
    }
}

} // namespace flexc::test
