// Logits that are products, each multiplied by a number of the row. They bring what keys add. What
// rows add are offsets of exponents.
#pragma once

#include "sm90/key_addend.cuh"
#include "sm90/plain_logits.cuh"

namespace sm90 {

// Of products that are multiplied by one positive constant.
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

  protected:
    float offsets_[2];
};

// Of products that bring what grows from key to key of a tile. Offsets are of the tile.
class SlopedLogits : public ProductLogits {
  public:
    using ProductLogits::ProductLogits;

    __device__ void prepare(int first_key) {
        elements_.visit_column(first_key, [&](int r, const mod::At& at) {
            offsets_[r] = multiply_finite(mod::row_addend(at), kLog2E);
        });
    }
};

// Of products that are added to functions of the distance.
class DistanceFirstLogits : public ProductLogits {
  public:
    using ProductLogits::ProductLogits;

    __device__ void find_tabulated(unsigned slices, int row) {
        slices_ = slices;
        row_ = row;
    }
    __device__ void start(Scores& scores, unsigned, int) const {
        TabulatedTile::start(scores, slices_, row_, elements_.first_column());
    }

  private:
    unsigned slices_; // of the tile that comes next
    int row_;
};

// Of products with a factor that is computed for each row, or each head, and may be any number. A
// hidden element is infinite against the factor's sign, so that its exponent is -inf.
class FactoredLogits : public PlainLogits {
    static constexpr int kFactors = kForm.factor_is_of_head ? 1 : 2;

  public:
    __device__ FactoredLogits(const AttentionArguments& attention, const mod::Arguments& arguments,
                              const HeadPlace& place, const SequenceLength& length, int warp_row,
                              int lane, unsigned tables = 0)
        : PlainLogits(attention, arguments, place, length, warp_row, lane, tables) {
        elements_.visit_column(0, [&](int r, const mod::At& at) {
            const float factor = usable_factor(attention.scale * mod::multiplier(at));
            if (r < kFactors) factors_[r] = factor * kLog2E;
            const bool has_offset = kHasOffset && factor != kNanFactor;
            offsets_[r] = has_offset ? multiply_finite(mod::row_addend(at), kLog2E) : 0;
        });
        units() = LogitUnits(fabsf(factors_[0]));
    }

    __device__ void apply(Scores& scores, int first_key) {
        hide(scores, first_key,
             HiddenIsOfRow{copysignf(negative_infinity(), -factor(0)),
                           copysignf(negative_infinity(), -factor(1))});
    }
    __device__ float exponent_below(int r, float logit, float max_log2) const {
        return fmaf(logit, factor(r), -max_log2);
    }
    __device__ float offset(int r, int) const { return kHasOffset ? offsets_[r] : 0; }
    __device__ float whole_sum(int r, float sum) const {
        return factor(r) == kNanFactor * kLog2E && sum != 0 ? __int_as_float(0x7fc00000) : sum;
    }

  private:
    __device__ float factor(int r) const { return factors_[r < kFactors ? r : 0]; }

    float factors_[kFactors], offsets_[2];
};

} // namespace sm90
