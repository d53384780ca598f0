// Sums over ranks of what tests have in host memory.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "distributed/collectives.h"
#include "distributed/host_work.h"

namespace flexc::test {

inline Result<void> sum_over_ranks(Communicator& communicator, std::span<float> values,
                                   float factor) {
    const auto work = distributed::make_host_work();
    // Messages of a rank that gave up may be read later than the values live.
    auto own = std::make_shared<std::vector<float>>(values.begin(), values.end());
    if (auto done = distributed::all_reduce(
            *work, communicator,
            TensorView::contiguous(own->data(), DType::f32,
                                   {static_cast<std::int64_t>(own->size())}),
            own, factor);
        !done)
        return done;
    std::ranges::copy(*own, values.begin());
    return {};
}

} // namespace flexc::test
