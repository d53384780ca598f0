// Where gradients come from products of q and dq, what is accumulated for dq lacks
// d score_mod / d score, which is the same for a whole row: see passes/row_gradient.h.
#pragma once

#include "common/element.cuh"
#include "sm90/row_gradients.cuh"

namespace sm90 {

// A query, of whose columns four neighbouring lanes have two of every eight.
template <bool kHasGradients> class QueryProductOf {
  public:
    __device__ QueryProductOf(const AttentionArguments& attention, const mod::Arguments& arguments,
                              int b, int h, int row)
        : attention_(attention), arguments_(arguments), b_(b), h_(h),
          row_(min(row, attention.q_len - 1)),
          counts_(row < attention.q_len && sees_anything(attention, b, h, row_)),
          q_(sm80::Plane<mod::Element>(attention.q, b, h).at(row_, 0)) {
        visit_row(attention, arguments, b, h, row_,
                  [&](const mod::At& at) { derivative_ = mod::derivative(at); });
    }

    // Two columns of dq, without the derivative, get it.
    __device__ void take(int column, float& x, float& y) {
        const unsigned pair = *reinterpret_cast<const unsigned*>(q_ + column);
        product_ += x * flexc_first(mod::Element{}, pair);
        product_ += y * flexc_second(mod::Element{}, pair);
        x = x == 0 ? 0 : x * derivative_;
        y = y == 0 ? 0 : y * derivative_;
    }

    __device__ void add_gradients() const {
        const float product = quad_sum(product_) * attention_.scale;
        const bool adds = counts_ && threadIdx.x % 4 == 0;
        const float sum = adds ? row_sum(attention_, b_, h_, row_) : 0;
        visit_row(attention_, arguments_, b_, h_, row_,
                  [&](const mod::At& at) { add_row_gradients(at, sum, adds ? product : 0); });
    }

  private:
    const AttentionArguments& attention_;
    const mod::Arguments& arguments_;
    int b_, h_, row_;
    bool counts_; // is a query, and sees anything
    const mod::Element* q_;
    float derivative_, product_ = 0;
};
template <> class QueryProductOf<false> {
  public:
    __device__ QueryProductOf(const AttentionArguments&, const mod::Arguments&, int, int, int) {}
    __device__ void take(int, float&, float&) {}
    __device__ void add_gradients() const {}
};
using QueryProduct = QueryProductOf<(mod::kGradients > 0)>;

} // namespace sm90
