#include "distributed/sinks.h"

#include "distributed/rows.h"

namespace flexc::distributed {

namespace {

// Extents of this rank's tensors.
struct Extents {
    explicit Extents(const detail::DistributedPlanState& plan)
        : b(plan.sizes.batch), h(plan.sizes.heads), h_kv(plan.sizes.kv_heads), rows(plan.q_rows),
          d(plan.kernel->sink_kernel->options().head_dim),
          dv(plan.kernel->sink_kernel->options().head_dim_v),
          dtype(plan.kernel->sink_kernel->options().dtype) {}

    std::int64_t b, h, h_kv, rows, d, dv;
    DType dtype;
};

float* floats(const TensorView& tensor) { return static_cast<float*>(tensor.data); }

} // namespace

Result<Sinks> Sinks::find(const detail::DistributedPlanState& plan, const TensorView& q,
                          std::span<const NamedTensor> buffers, Workspace workspace) {
    TensorWork& work = plan.work->tensors();
    Sinks sinks(work);
    if (plan.sinks.empty()) return sinks;
    const Extents n(plan);
    sinks.values_ = sinks.memory_.unset(DType::f32, {n.b, n.h, n.rows});
    WorkTensors own(work);
    const TensorView k = own.zeros(n.dtype, {n.b, n.h_kv, 1, n.d}),
                     v = own.zeros(n.dtype, {n.b, n.h_kv, 1, n.dv});
    if (!own.made()) return own.made().error();
    if (!sinks.memory_.made()) return sinks.memory_.made().error();
    for (const SinkLaunch& launch : plan.sinks) {
        const std::int64_t rows = launch.rows.count();
        WorkTensors of_launch(work);
        const ForwardTensors tensors{.q = rows_of(q, launch.rows.begin, rows),
                                     .k = k,
                                     .v = v,
                                     .o = of_launch.unset(DType::f32, {n.b, n.h, rows, n.dv}),
                                     .lse = rows_of(sinks.values_, launch.rows.begin, rows)};
        if (!of_launch.made()) return of_launch.made().error();
        if (auto done = plan.kernel->sink_kernel->forward(launch.plan, tensors, buffers, workspace,
                                                          plan.work->stream());
            !done)
            return done.error();
    }
    return sinks;
}

Result<Sinks::RowViews> Sinks::with_sinks(const TensorView& lse, const TensorView& d_lse) {
    if (!values_) return RowViews{lse, d_lse};
    RowViews views{memory_.widened(lse), d_lse ? memory_.widened(d_lse) : TensorView{}};
    if (!memory_.made()) return memory_.made().error();
    if (auto done = work_->add_sinks({.sinks = values(),
                                      .lse = floats(views.lse),
                                      .d_lse = floats(views.d_lse),
                                      .count = lse.elements()});
        !done)
        return done.error();
    return views;
}

Result<void> Sinks::learn(const detail::DistributedPlanState& plan, const BackwardTensors& tensors,
                          std::span<const NamedTensor> buffers, std::span<const NamedTensor> sums,
                          Workspace workspace) const {
    if (!values_ || sums.empty()) return {};
    const Extents n(plan);
    WorkTensors own(*work_);
    const TensorView k = own.zeros(n.dtype, {n.b, n.h_kv, 1, n.d}),
                     v = own.zeros(n.dtype, {n.b, n.h_kv, 1, n.dv}),
                     gradients = own.unset(DType::f32, {n.b, n.h, n.rows}),
                     lse = own.widened(tensors.lse), o = own.widened(tensors.o),
                     d_out = own.widened(tensors.d_out);
    if (!own.made()) return own.made();
    if (auto done = work_->sink_gradients({.sinks = values(),
                                           .lse = floats(lse),
                                           .o = floats(o),
                                           .d_out = floats(d_out),
                                           .gradients = floats(gradients),
                                           .count = lse.elements(),
                                           .columns = static_cast<int>(n.dv)});
        !done)
        return done;
    for (const SinkLaunch& launch : plan.sinks) {
        const std::int64_t first = launch.rows.begin, rows = launch.rows.count();
        WorkTensors of_launch(*work_);
        const TensorView zeros = of_launch.zeros(n.dtype, {n.b, n.h, rows, n.dv});
        const BackwardTensors piece{.q = rows_of(tensors.q, first, rows),
                                    .k = k,
                                    .v = v,
                                    .o = zeros,
                                    .lse = rows_of(values_, first, rows),
                                    .d_out = zeros,
                                    .d_lse = rows_of(gradients, first, rows),
                                    .dq = of_launch.zeros(DType::f32, {n.b, n.h, rows, n.d}),
                                    .dk = of_launch.zeros(DType::f32, {n.b, n.h_kv, 1, n.d}),
                                    .dv = of_launch.zeros(DType::f32, {n.b, n.h_kv, 1, n.dv})};
        if (!of_launch.made()) return of_launch.made();
        if (auto done = plan.kernel->sink_kernel->backward(launch.plan, piece, buffers, sums,
                                                           workspace, plan.work->stream());
            !done)
            return done;
    }
    return {};
}

} // namespace flexc::distributed
