// A program of somebody who has installed flexc.
#include <flexc/flexc.h>
#include <flexc/version.h>

#include <cstring>
#include <iostream>
#include <vector>

namespace {

int fail(const flexc::Error& error) {
    std::cerr << error.message << '\n';
    return 1;
}

// Two keys with equal scores: the mean of their values.
int attend() {
    auto kernel = flexc::compile(
        "score", {.dtype = flexc::DType::f32, .head_dim = 4, .device = flexc::Device::cpu()});
    if (!kernel) return fail(kernel.error());
    auto plan = kernel->plan({.kv_len = 2});
    if (!plan) return fail(plan.error());
    std::vector<float> q(4, 0.0f), k(8, 0.0f), v = {1, 1, 1, 1, 4, 4, 4, 4}, o(4, 0.0f);
    std::vector<unsigned char> workspace(plan->workspace_bytes() + 256);
    const auto view = [](std::vector<float>& data, std::int64_t rows) {
        return flexc::TensorView::contiguous(data.data(), flexc::DType::f32, {1, 1, rows, 4});
    };
    void* aligned =
        workspace.data() + (256 - reinterpret_cast<std::uintptr_t>(workspace.data()) % 256) % 256;
    auto done = kernel->forward(*plan, {view(q, 1), view(k, 2), view(v, 2), view(o, 1), {}}, {},
                                {aligned, plan->workspace_bytes()});
    if (!done) return fail(done.error());
    std::cout << "attention " << o[3] << '\n';
    return 0;
}

} // namespace

int main(int count, char** arguments) {
    std::cout << "flexc " << flexc::version() << '\n';
    if (flexc::version() != FLEXC_VERSION) return 1;
    auto signature = flexc::check(
        "score + slopes[h] * (kv_idx - q_idx)",
        {.buffers = {{.name = "slopes", .type = flexc::DType::f32, .dims = {"H"}, .grad = true}}});
    if (!signature) return fail(signature.error());
    for (const auto& buffer : signature->buffers)
        std::cout << "buffer " << buffer.name << " " << flexc::name(buffer.dtype) << '\n';
    // Whatever the headers declare has to be in a shared library too.
    const auto token = flexc::CancelToken::create();
    token.cancel();
    if (!token.is_cancelled() || !flexc::library_mod("causal_mask")) return 1;
    if (flexc::supports("score", {}, "sm_1")) return 1;

    const auto wrong = flexc::check("score + kv_idy");
    if (wrong) return 1;
    std::cout << wrong.error().message << '\n';
    return count > 1 && std::strcmp(arguments[1], "ON") == 0 ? attend() : 0;
}
