// Two ranks of one process, from an installation: every key of both is seen.
#include <cstdio>
#include <thread>
#include <vector>

#include <flexc/distributed.h>

int main() {
    constexpr std::int64_t kLength = 6, kDim = 8;
    const auto kernel = flexc::compile_distributed(
        "score * 0", {.dtype = flexc::DType::f32, .head_dim = kDim, .backward = false});
    if (!kernel) {
        std::printf("%s\n", kernel.error().message.c_str());
        return kernel.error().code == flexc::ErrorCode::library_missing ? 0 : 1;
    }
    const auto shards = flexc::Shards::zigzag(kLength, 2);
    auto communicators = flexc::in_process_communicators(2);
    if (!shards || !communicators) return 1;
    std::vector<int> failures(2);
    const auto work = [&](int rank) {
        const auto at = static_cast<std::size_t>(rank);
        const std::int64_t rows = shards->rows(rank);
        std::vector<float> q(static_cast<std::size_t>(rows * kDim)), v(q.size()), o(q.size());
        std::size_t next = 0;
        for (const flexc::RowRange& range : shards->ranges(rank))
            for (std::int64_t row = range.begin; row < range.end; ++row)
                for (std::int64_t d = 0; d < kDim; ++d)
                    v[next++] = static_cast<float>(row);
        const auto view = [&](std::vector<float>& data) {
            return flexc::TensorView::contiguous(data.data(), flexc::DType::f32,
                                                 {1, 1, rows, kDim});
        };
        const auto plan = kernel->plan({.queries = *shards, .keys = *shards}, (*communicators)[at]);
        const auto done = plan ? kernel->forward(*plan, {view(q), view(q), view(v), view(o), {}})
                               : flexc::Result<void>(plan.error());
        for (const float value : o)
            failures[at] += done && value > 2.49f && value < 2.51f ? 0 : 1;
    };
    std::thread other(work, 1);
    work(0);
    other.join();
    std::printf("ranks end %s\n", failures[0] + failures[1] == 0 ? "well" : "badly");
    return failures[0] + failures[1];
}
