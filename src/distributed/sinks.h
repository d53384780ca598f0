// Adds sinks once for each row, whatever ranks its keys come from: in the forward when all partial
// results are merged, in the backward through an lse that includes them.
//
// With r = 1 / (1 + exp(sink - lse)): o = r * (o without the sink); the weights of keys beside it
// are exp(score - (lse - log r)); d sink = -(1 - r) * sum(d_out * o).
#pragma once

#include <span>

#include "distributed/state.h"
#include "distributed/work_tensors.h"

namespace flexc::distributed {

class Sinks {
  public:
    // Computes the sink of each of this rank's rows, [B, H, rows]. The contents of q are not used.
    static Result<Sinks> find(const detail::DistributedPlanState& plan, const TensorView& q,
                              std::span<const NamedTensor> buffers, Workspace workspace);

    // Null if the program has no sink.
    const float* values() const { return static_cast<const float*>(values_.data); }

    // Returns lse and d_lse for the backward of pieces: they include the sinks, or are unchanged
    // without sinks. d_lse may be absent. The views are of this object's memory.
    struct RowViews {
        TensorView lse, d_lse;
    };
    Result<RowViews> with_sinks(const TensorView& lse, const TensorView& d_lse);

    // Adds the gradients of the buffers that sinks read to `sums`.
    Result<void> learn(const detail::DistributedPlanState& plan, const BackwardTensors& tensors,
                       std::span<const NamedTensor> buffers, std::span<const NamedTensor> sums,
                       Workspace workspace) const;

  private:
    explicit Sinks(TensorWork& work) : work_(&work), memory_(work) {}

    TensorWork* work_;
    WorkTensors memory_;
    TensorView values_; // f32, without gaps
};

} // namespace flexc::distributed
