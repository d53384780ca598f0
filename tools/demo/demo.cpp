// A learned ALiBi mod, forward and backward, with its gradient checked and its weights drawn.
#include <cmath>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "demo/picture.h"
#include "flexc/attention_call.h"
#include "flexc/command.h"
#include "flexc/fill.h"
#include "flexc/flexc.h"
#include "flexc/mod_option.h"
#include "support/text.h"

namespace {

using namespace flexc;
using cli::AttentionCall;
using cli::ProblemShape;

constexpr const char* kProgram = R"(buffer slopes: f32[H] grad
score_mod = score + slopes[h] * (kv_idx - q_idx)
mask_mod = q_idx >= kv_idx
)";

const BufferInfo kSlopes{.name = "slopes", .dtype = DType::f32, .dims = {"H"}, .grad = true};

std::span<const std::byte> as_bytes(const std::vector<float>& values) {
    return std::as_bytes(std::span(values));
}

std::vector<float> download(const AttentionCall& call, std::string_view name) {
    for (const auto& tensor : call.outputs()) {
        if (tensor.name != name) {
            continue;
        }
        std::vector<float> values(static_cast<std::size_t>(tensor.view.elements()));
        cli::require(tensor.memory.download(values.data(), values.size() * sizeof(float)));
        return values;
    }
    return {};
}

// The slopes of the ALiBi paper: 2^(-8/H), 2^(-16/H), ...
std::vector<float> alibi_slopes(std::int64_t heads) {
    std::vector<float> slopes;
    for (std::int64_t head = 1; head <= heads; ++head) {
        slopes.push_back(std::exp2(-8.0F * static_cast<float>(head) / static_cast<float>(heads)));
    }
    return slopes;
}

Kernel compile_for(Device device, const ProblemShape& shape) {
    return cli::value_of(compile(kProgram, {.source_name = "demo.flex",
                                            .dtype = shape.dtype,
                                            .head_dim = shape.head_dim,
                                            .head_dim_v = shape.head_dim_v,
                                            .device = device}));
}

AttentionCall make_call(const Kernel& kernel, const ProblemShape& shape,
                        const std::vector<float>& slopes) {
    AttentionCall call(kernel, shape, {});
    const auto normal = cli::parse_fill("normal:1");
    call.set("q", cli::make_contents(normal, shape.dtype, cli::q_shape(shape), 1));
    call.set("k", cli::make_contents(normal, shape.dtype, cli::k_shape(shape), 2));
    call.set("v", cli::make_contents(normal, shape.dtype, cli::v_shape(shape), 3));
    call.set("do", cli::make_contents(normal, shape.dtype, cli::o_shape(shape), 4));
    const std::int64_t heads[] = {shape.sizes.heads};
    call.add_buffer(kSlopes, heads, as_bytes(slopes));
    call.prepare(true);
    return call;
}

// The loss that has `do` as its gradient: the sum of o * do.
double loss(const Kernel& kernel, const ProblemShape& shape, const std::vector<float>& slopes) {
    const auto call = make_call(kernel, shape, slopes);
    cli::require(call.forward());
    call.synchronize();
    const auto bytes =
        cli::make_contents(cli::parse_fill("normal:1"), DType::f32, cli::o_shape(shape), 4);
    const auto* d_out = reinterpret_cast<const float*>(bytes.data());
    double sum = 0;
    for (const float x : download(call, "o")) {
        sum += static_cast<double>(x) * *d_out++;
    }
    return sum;
}

// Zero scores and the identity for v: what comes out are the weights themselves.
void draw(Device device) {
    constexpr int kLength = 32;
    const ProblemShape shape{.sizes = {.q_len = kLength, .kv_len = kLength},
                             .head_dim = 8,
                             .head_dim_v = kLength,
                             .dtype = DType::f32};
    std::vector<float> identity(std::size_t{kLength} * kLength);
    for (std::size_t i = 0; i < kLength; ++i) {
        identity[i * kLength + i] = 1;
    }
    AttentionCall call(compile_for(device, shape), shape, {});
    for (const char* tensor : {"q", "k", "do"}) {
        call.set(tensor, {});
    }
    call.set("v", as_bytes(identity));
    const std::int64_t heads[] = {1};
    call.add_buffer(kSlopes, heads, as_bytes({0.25F}));
    call.prepare(true);
    cli::require(call.forward());
    call.synchronize();
    print(stdout,
          "\nattention weights of a head with slope 1/4, {0} queries down, {0} keys across\n"
          "(· is hidden by the mask; darker is more):\n\n{1}",
          kLength, demo::draw_weights(download(call, "o"), kLength, kLength));
}

void run_demo(Device device) {
    const ProblemShape shape{
        .sizes = {.batch = 1, .heads = 8, .kv_heads = 2, .q_len = 512, .kv_len = 512},
        .head_dim = 64,
        .head_dim_v = 64,
        .dtype = DType::f32};
    const auto kernel = compile_for(device, shape);
    print(stdout, "the program:\n\n{}\n", kProgram);
    print(stdout, "compiled for {} in {:.0f} ms{}\n", cli::describe(kernel.device()),
          kernel.compile_ms(), kernel.from_cache() ? ", from the cache" : "");
    for (const auto& info : kernel.kernels()) {
        // The description of a CPU names every feature it has.
        print(stdout, "  {}: {:.90}\n", info.name, info.reason);
    }

    auto slopes = alibi_slopes(shape.sizes.heads);
    auto call = make_call(kernel, shape, slopes);
    const auto time = [&](Result<void> (*work)(void*)) {
        return cli::value_of(Timer::measure(kernel.device(), {1, 1}, work, &call)).back();
    };
    const double forward_ms =
        time([](void* x) { return static_cast<AttentionCall*>(x)->forward(); });
    const double backward_ms =
        time([](void* x) { return static_cast<AttentionCall*>(x)->backward(); });
    call.synchronize();
    print(
        stdout,
        "8 heads over 2 key heads, 512 tokens, D 64, f32: forward {:.2f} ms, backward {:.2f} ms\n",
        forward_ms, backward_ms);

    const auto gradient = download(call, "d.slopes");
    constexpr float kStep = 1e-3F;
    print(stdout, "\nlearned slopes and their gradients:\n");
    for (std::size_t head = 0; head < slopes.size(); ++head) {
        print(stdout, "  head {}: slope {:.5f}  gradient {:+.4f}\n", head, slopes[head],
              gradient[head]);
    }
    const float middle = slopes[3];
    slopes[3] = middle + kStep;
    const double above = loss(kernel, shape, slopes);
    slopes[3] = middle - kStep;
    const double below = loss(kernel, shape, slopes);
    print(stdout, "head 3 by finite differences of the forward: {:+.4f}\n",
          (above - below) / (2 * kStep));
    draw(kernel.device());
}

} // namespace

int main() {
    try {
        const auto device = default_device();
        if (device.kind == Device::Kind::cpu) {
            print(stdout,
                  "no GPU that flexc can use was found (`flexc doctor` says why): on the CPU\n\n");
        }
        run_demo(device);
    } catch (const std::exception& error) {
        print(stderr, "demo: {}\n", error.what());
        return 1;
    }
    return 0;
}
