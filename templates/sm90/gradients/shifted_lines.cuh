// Places in memory of gradients of reads whose addresses are affine in q and kv: lines, each of a
// query or of a key, along which elements are side by side.
#pragma once

#include "common/place.cuh"
#include "sm90/backward_layout.cuh"
#include "sm90/warpgroup.cuh"

namespace sm90 {

// The lines of one gradient, from some query and key on: rows and keys are counted from there, and
// indices from the one there.
template <int kGradient> class ShiftedLines {
    using To = mod::ShiftedGradient<kGradient>;

  public:
    static constexpr int kAlong = To::kByKey ? To::kQueryStep : To::kKeyStep;
    static constexpr int kAcross = To::kByKey ? To::kKeyStep : To::kQueryStep;
    static_assert(kAlong == 1 || kAlong == -1);

    __device__ ShiftedLines(const AttentionArguments& attention, const mod::Arguments& arguments,
                            const HeadPlace& place, int query, int key) {
        const auto line = [&](int i) {
            return visit_element(attention, arguments, place, To::kByKey ? 0 : i,
                                 To::kByKey ? i : 0,
                                 [](const mod::At& at) { return To::line(at); });
        };
        first_ = line(0);
        line_step_ = (To::kByKey ? attention.kv_len : attention.q_len) > 1 ? line(1) - first_ : 0;
        first_ += (To::kByKey ? key : query) * line_step_;
        visit_element(attention, arguments, place, 0, 0, [&](const mod::At& at) {
            const long long index = To::index(at) + index_of(query, key);
            low_ = bounded(To::least(at) - index);
            high_ = bounded(To::most(at) - index);
            first_ += index;
        });
    }

    static __device__ int index_of(int row, int key) {
        return To::kQueryStep * row + To::kKeyStep * key;
    }
    // First and last of the indices that there are.
    __device__ int low() const { return low_; }
    __device__ int high() const { return high_; }
    // Return where a line would have the first index, and the step from there to the same index of
    // the next line.
    __device__ float* line(int i) const { return first_ + i * line_step_; }
    __device__ long long line_step() const { return line_step_; }

  private:
    static __device__ int bounded(long long x) {
        return static_cast<int>(
            flexc_min(flexc_max(x, -static_cast<long long>(kAnyDistance)), kAnyDistance + 0ll));
    }

    float* first_; // of the first element, which may be outside
    long long line_step_;
    int low_, high_;
};

// Returns whether elements that share their place with no other are stored, since their places hold
// nothing before. Behind a kernel that may have added to the gradient, they may.
template <int kGradient>
__device__ inline bool stores_shifted(const AttentionArguments& attention) {
    return mod::ShiftedGradient<kGradient>::kIsApart && !mod::ReadGradients::kAreAlone &&
           (attention.dk_flags & kOutputAccumulate) == 0;
}

} // namespace sm90
