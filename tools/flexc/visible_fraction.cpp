#include "flexc/visible_fraction.h"

#include <algorithm>
#include <cmath>

#include "flexc/command.h"

namespace flexc::cli {
namespace {

// A row's count, from its logarithm.
double visible_keys(const DeviceTensor& lse) {
    std::vector<float> log_sums(static_cast<std::size_t>(lse.view.elements()));
    require(lse.memory.download(log_sums.data(), log_sums.size() * sizeof(float)));
    double visible = 0;
    for (const float log_sum : log_sums) {
        visible += std::round(std::exp(static_cast<double>(log_sum)));
    }
    return visible;
}

} // namespace

VisibleFraction visible_fraction(const BenchCase& bench, AttentionCall& call) {
    auto options = call.kernel().options();
    options.count_visible = true;
    options.schedule.clear(); // of another kernel
    auto kernel = compile(bench.mod.text, options);
    if (!kernel) {
        return {std::nullopt, "the kernel that counts did not compile: " + kernel.error().message};
    }
    call.use(std::move(*kernel));
    require(call.forward());
    call.synchronize();
    const auto& outputs = call.outputs();
    const auto lse = std::ranges::find(outputs, "lse", &DeviceTensor::name);
    const auto& sizes = call.shape().sizes;
    return {visible_keys(*lse) /
                (static_cast<double>(lse->view.elements()) * static_cast<double>(sizes.kv_len)),
            "counted on the tensors of the benchmark"};
}

} // namespace flexc::cli
