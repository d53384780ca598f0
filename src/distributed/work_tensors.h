// Contiguous tensors in which a call works.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "distributed/rows.h"
#include "distributed/tensor_work.h"

namespace flexc::distributed {

// Owns their memory. If one cannot be allocated, made() returns the first such error.
class WorkTensors {
  public:
    explicit WorkTensors(TensorWork& work) : work_(work) {}

    TensorView unset(DType dtype, std::span<const std::int64_t> shape) {
        TensorView view = TensorView::contiguous(nullptr, dtype, shape);
        auto memory = work_.allocate(bytes_of(view));
        if (!memory) {
            fail(memory.error());
            return view;
        }
        view.data = memory_.emplace_back(std::move(*memory)).get();
        return view;
    }
    TensorView unset(DType dtype, std::initializer_list<std::int64_t> shape) {
        return unset(dtype, std::span(shape.begin(), shape.size()));
    }
    TensorView zeros(DType dtype, std::span<const std::int64_t> shape) {
        const TensorView view = unset(dtype, shape);
        if (!view) return view;
        if (auto done = work_.clear(view.data, bytes_of(view)); !done) fail(done.error());
        return view;
    }
    TensorView zeros(DType dtype, std::initializer_list<std::int64_t> shape) {
        return zeros(dtype, std::span(shape.begin(), shape.size()));
    }
    // A copy as f32.
    TensorView widened(const TensorView& tensor) {
        const TensorView view =
            unset(DType::f32, std::span(tensor.shape).first(static_cast<std::size_t>(tensor.rank)));
        if (!view) return view;
        if (auto done = work_.copy(tensor, view); !done) fail(done.error());
        return view;
    }

    const Result<void>& made() const { return made_; }

  private:
    void fail(const Error& error) {
        if (made_) made_ = error;
    }

    TensorWork& work_;
    std::vector<Bytes> memory_;
    Result<void> made_;
};

// Copies results to the caller's tensors, if there are any.
inline Result<void> copy_wanted(TensorWork& work, std::initializer_list<Moved> results) {
    std::vector<Moved> wanted;
    for (const Moved& one : results)
        if (one.to) wanted.push_back(one);
    return work.copy(wanted);
}

} // namespace flexc::distributed
