// The C++ example of README.md, which CMake cuts out of the page, between its tensors and a check.
#include <flexc/flexc.h>

#include <cmath>
#include <cstdint>
#include <deque>
#include <iostream>
#include <string_view>
#include <vector>

namespace {

constexpr std::int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kLength = 100, kHeadDim = 64;

std::deque<std::vector<float>> memory;

flexc::TensorView tensor(std::initializer_list<std::int64_t> shape, float value) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape)
        count *= extent;
    std::vector<float>& data = memory.emplace_back(count);
    for (std::int64_t i = 0; i < count; ++i)
        data[i] = value * std::sin(static_cast<float>(i));
    return flexc::TensorView::contiguous(data.data(), flexc::DType::f32, shape);
}

void* allocate(std::size_t bytes) {
    auto* data = reinterpret_cast<unsigned char*>(memory.emplace_back(bytes / 4 + 128).data());
    return data + (256 - reinterpret_cast<std::uintptr_t>(data) % 256) % 256;
}

int report(std::string_view message) {
    std::cerr << message << '\n';
    return 1;
}

} // namespace

int main() {
    const auto q = tensor({kBatch, kHeads, kLength, kHeadDim}, 1);
    const auto k = tensor({kBatch, kKvHeads, kLength, kHeadDim}, 1);
    const auto v = tensor({kBatch, kKvHeads, kLength, kHeadDim}, 1);
    const auto o = tensor({kBatch, kHeads, kLength, kHeadDim}, 0);
    const auto lse = tensor({kBatch, kHeads, kLength}, 0);
    const auto d_out = tensor({kBatch, kHeads, kLength, kHeadDim}, 1);
    const auto dq = tensor({kBatch, kHeads, kLength, kHeadDim}, NAN);
    const auto dk = tensor({kBatch, kKvHeads, kLength, kHeadDim}, NAN);
    const auto dv = tensor({kBatch, kKvHeads, kLength, kHeadDim}, NAN);
    const flexc::NamedTensor buffers[] = {{"slopes", tensor({kHeads}, 0.5f)}};
    const flexc::NamedTensor gradients[] = {{"slopes", tensor({kHeads}, NAN)}};
#include "readme_example.h"
    // A causal mask shows the first query one key, whose value is its output and whose gradient of
    // q is 0.
    const auto first = [](const flexc::TensorView& view) {
        return static_cast<const float*>(view.data);
    };
    for (std::int64_t i = 0; i < kHeadDim; ++i)
        if (std::abs(first(o)[i] - first(v)[i]) > 1e-6f || std::abs(first(dq)[i]) > 1e-5f)
            return report("the first row is not what one key gives");
    if (!std::isfinite(first(gradients[0].tensor)[kHeads - 1])) return report("no gradient");
    std::cout << "readme ends well\n";
    return 0;
}
