#include "distributed/partial_sums.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "distributed/rows.h"

namespace flexc::distributed {

namespace {
constexpr float kNothing = -std::numeric_limits<float>::infinity();
}

PartialSums::PartialSums(std::int64_t batch, std::int64_t heads, std::int64_t rows,
                         std::int64_t columns)
    : batch_(batch), heads_(heads), rows_(rows), columns_(columns),
      sums_(static_cast<std::size_t>(batch * heads * rows * columns)),
      largest_(static_cast<std::size_t>(batch * heads * rows), kNothing),
      weights_(static_cast<std::size_t>(batch * heads * rows)) {}

void PartialSums::add(RowRange heads, RowRange rows, const float* o, const float* lse) {
    for (std::int64_t i = 0; i < batch_ * heads.count(); ++i) {
        const std::int64_t head = i / heads.count() * heads_ + heads.begin + i % heads.count();
        for (std::int64_t row = rows.begin; row < rows.end; ++row, o += columns_, ++lse) {
            const float own = *lse;
            if (own == kNothing) continue;
            const auto place = static_cast<std::size_t>(head * rows_ + row);
            float* const sum = sums_.data() + static_cast<std::ptrdiff_t>(place) * columns_;
            float& largest = largest_[place];
            if (largest == kNothing) {
                std::copy_n(o, columns_, sum);
                largest = own;
                weights_[place] = 1;
                continue;
            }
            const double difference = double{own} - double{largest};
            if (difference > 0) {
                const double scale = std::exp(-difference);
                const auto factor = static_cast<float>(scale);
                for (std::int64_t d = 0; d < columns_; ++d)
                    sum[d] = sum[d] * factor + o[d];
                weights_[place] = weights_[place] * scale + 1;
                largest = own;
            } else {
                const double weight = std::exp(difference);
                const auto factor = static_cast<float>(weight);
                for (std::int64_t d = 0; d < columns_; ++d)
                    sum[d] += factor * o[d];
                weights_[place] += weight;
            }
        }
    }
}

void PartialSums::finish(RowRange rows, const float* sinks, const TensorView& o,
                         const TensorView& lse) const {
    std::vector<float> outputs, log_sums;
    outputs.reserve(static_cast<std::size_t>(batch_ * heads_ * rows.count() * columns_));
    for (std::int64_t head = 0; head < batch_ * heads_; ++head)
        for (std::int64_t row = rows.begin; row < rows.end; ++row) {
            const auto place = static_cast<std::size_t>(head * rows_ + row);
            const bool is_empty = largest_[place] == kNothing;
            const float* const sum = sums_.data() + static_cast<std::ptrdiff_t>(place) * columns_;
            const double log_sum = double{largest_[place]} + std::log(weights_[place]);
            double weights = weights_[place];
            if (sinks != nullptr) weights *= 1 + std::exp(double{sinks[place]} - log_sum);
            for (std::int64_t d = 0; d < columns_; ++d)
                outputs.push_back(is_empty ? 0.0f : static_cast<float>(double{sum[d]} / weights));
            log_sums.push_back(is_empty ? kNothing : static_cast<float>(log_sum));
        }
    round_to(outputs.data(), o);
    if (lse) round_to(log_sums.data(), lse);
}

} // namespace flexc::distributed
