#include "distributed/sinks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "distributed/rows.h"

namespace flexc::distributed {

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
// Weights that are less than those without the sink by more than this have no say beside a d_lse,
// which would overflow.
constexpr double kMost = 56 * std::numbers::ln2;

// One row of zeros, as tensors of any number of rows and heads.
class Zeros {
  public:
    Zeros() : memory_(kMaxHeadDim) {}
    TensorView of(DType dtype, std::int64_t batch, std::int64_t heads, std::int64_t rows,
                  std::int64_t columns) {
        TensorView view =
            TensorView::contiguous(memory_.data(), dtype, {batch, heads, rows, columns});
        view.strides = {0, 0, 0, 1};
        return view;
    }

  private:
    std::vector<float> memory_;
};

std::vector<float> packed(const TensorView& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    pack(tensor, reinterpret_cast<std::byte*>(values.data()));
    return values;
}

// As f32, of any of the types of tensors.
std::vector<float> widened(const TensorView& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    widen(tensor, values.data());
    return values;
}

// log(exp(lse) + exp(sink)) - lse.
double log_more(float sink, float lse) {
    const double above = double{sink} - double{lse};
    return std::max(above, 0.0) + std::log1p(std::exp(-std::abs(above)));
}

} // namespace

Result<Sinks> Sinks::find(const detail::DistributedPlanState& plan, const TensorView& q,
                          std::span<const NamedTensor> buffers, Workspace workspace) {
    Sinks sinks;
    if (plan.sinks.empty()) return sinks;
    const Kernel& kernel = *plan.kernel->sink_kernel;
    const std::int64_t b = plan.sizes.batch, h = plan.sizes.heads, h_kv = plan.sizes.kv_heads;
    const std::int64_t d = kernel.options().head_dim, dv = kernel.options().head_dim_v;
    Zeros zeros;
    sinks.values_.resize(static_cast<std::size_t>(b * h * plan.q_rows));
    const TensorView values =
        TensorView::contiguous(sinks.values_.data(), DType::f32, {b, h, plan.q_rows});
    for (const SinkLaunch& launch : plan.sinks) {
        const std::int64_t rows = launch.rows.count();
        std::vector<float> o(static_cast<std::size_t>(b * h * rows * dv));
        const DType dtype = kernel.options().dtype;
        const ForwardTensors tensors{
            .q = rows_of(q, launch.rows.begin, rows),
            .k = zeros.of(dtype, b, h_kv, 1, d),
            .v = zeros.of(dtype, b, h_kv, 1, dv),
            .o = TensorView::contiguous(o.data(), DType::f32, {b, h, rows, dv}),
            .lse = rows_of(values, launch.rows.begin, rows)};
        if (auto done = kernel.forward(launch.plan, tensors, buffers, workspace); !done)
            return done.error();
    }
    return sinks;
}

Sinks::RowViews Sinks::with_sinks(const TensorView& lse, const TensorView& d_lse) {
    if (values_.empty()) return {lse, d_lse};
    lse_ = packed(lse);
    if (d_lse) d_lse_ = packed(d_lse);
    for (std::size_t i = 0; i < lse_.size(); ++i) {
        if (lse_[i] == kNothing) continue;
        double more = log_more(values_[i], lse_[i]);
        if (d_lse && d_lse_[i] != 0) {
            more = std::min(more, kMost);
            d_lse_[i] = static_cast<float>(d_lse_[i] * std::exp(more));
        }
        lse_[i] = static_cast<float>(lse_[i] + more);
    }
    const auto shape = std::span(lse.shape).first(3);
    RowViews views{TensorView::contiguous(lse_.data(), DType::f32, shape), {}};
    if (d_lse) views.d_lse = TensorView::contiguous(d_lse_.data(), DType::f32, shape);
    return views;
}

Result<void> Sinks::learn(const detail::DistributedPlanState& plan, const BackwardTensors& tensors,
                          std::span<const NamedTensor> buffers, std::span<const NamedTensor> sums,
                          Workspace workspace) const {
    if (values_.empty() || sums.empty()) return {};
    const Kernel& kernel = *plan.kernel->sink_kernel;
    const std::int64_t b = plan.sizes.batch, h = plan.sizes.heads, h_kv = plan.sizes.kv_heads;
    const std::int64_t d = kernel.options().head_dim, dv = kernel.options().head_dim_v;
    const DType dtype = kernel.options().dtype;
    // Of the lse of one key, which is the sink; rows without a gradient see no key.
    std::vector<float> own(values_), gradients(values_.size());
    const std::vector<float> lse = packed(tensors.lse);
    const std::vector<float> o = widened(tensors.o), d_out = widened(tensors.d_out);
    for (std::size_t i = 0; i < own.size(); ++i) {
        double product = 0;
        for (std::int64_t column = 0; column < dv; ++column) {
            const auto at = i * static_cast<std::size_t>(dv) + static_cast<std::size_t>(column);
            product += double{o[at]} * double{d_out[at]};
        }
        const double share = 1 / (1 + std::exp(double{lse[i]} - double{values_[i]}));
        gradients[i] = lse[i] == kNothing ? 0.0f : static_cast<float>(-share * product);
        if (gradients[i] == 0) own[i] = kNothing;
    }
    const auto of_rows = [&](std::vector<float>& values, const RowRange& rows) {
        return rows_of(TensorView::contiguous(values.data(), DType::f32, {b, h, plan.q_rows}),
                       rows.begin, rows.count());
    };
    Zeros zeros;
    for (const SinkLaunch& launch : plan.sinks) {
        const std::int64_t rows = launch.rows.count();
        std::vector<float> dq(static_cast<std::size_t>(b * h * rows * d)),
            dk(static_cast<std::size_t>(b * h_kv * d)),
            d_v(static_cast<std::size_t>(b * h_kv * dv));
        const BackwardTensors piece{
            .q = rows_of(tensors.q, launch.rows.begin, rows),
            .k = zeros.of(dtype, b, h_kv, 1, d),
            .v = zeros.of(dtype, b, h_kv, 1, dv),
            .o = zeros.of(dtype, b, h, rows, dv),
            .lse = of_rows(own, launch.rows),
            .d_out = zeros.of(dtype, b, h, rows, dv),
            .d_lse = of_rows(gradients, launch.rows),
            .dq = TensorView::contiguous(dq.data(), DType::f32, {b, h, rows, d}),
            .dk = TensorView::contiguous(dk.data(), DType::f32, {b, h_kv, 1, d}),
            .dv = TensorView::contiguous(d_v.data(), DType::f32, {b, h_kv, 1, dv})};
        if (auto done = kernel.backward(launch.plan, piece, buffers, sums, workspace); !done)
            return done;
    }
    return {};
}

} // namespace flexc::distributed
