// Logits that are products, of which each is multiplied by the same constant. They bring what keys
// add. What rows add are offsets of exponents.
#pragma once

#include "sm90/key_addend.cuh"
#include "sm90/plain_logits.cuh"

namespace sm90 {

class ProductLogits : public PlainLogits {
  public:
    __device__ ProductLogits(const AttentionArguments& attention, const mod::Arguments& arguments,
                             const HeadPlace& place, const SequenceLength& length, int warp_row,
                             int lane, unsigned tables = 0)
        : PlainLogits(attention, arguments, place, length, warp_row, lane, tables) {
        elements_.visit_column(0, [&](int r, const mod::At& at) {
            const float per_product = attention.scale * mod::multiplier(at);
            units() = LogitUnits(per_product * kLog2E);
            offsets_[r] = kHasOffset ? in_products(mod::row_addend(at), per_product) : 0;
        });
    }

    __device__ float offset(int r, int) const { return kHasOffset ? offsets_[r] : 0; }

  private:
    float offsets_[2];
};

} // namespace sm90
