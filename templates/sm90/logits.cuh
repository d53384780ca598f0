// Computes logits, of which the softmax takes powers of two, from products of queries and keys. A
// class for each form of score, with one interface, that of PlainLogits.
#pragma once

#include "common/select.h"
#include "sm90/affine_logits.cuh"
#include "sm90/column_sums.cuh"
#include "sm90/element_addend.cuh"
#include "sm90/plain_logits.cuh"
#include "sm90/product_logits.cuh"

namespace sm90 {

class AffineLogits;
class BiasFirstLogits;

// Logits of scores that could not be taken apart: the program computes each.
class ProgramLogits : public PlainLogits {
  public:
    __device__ ProgramLogits(const AttentionArguments& attention, const mod::Arguments& arguments,
                             const HeadPlace& place, const SequenceLength& length, int warp_row,
                             int lane, unsigned tables = 0)
        : PlainLogits(attention, arguments, place, length, warp_row, lane, tables) {
        units() = LogitUnits(kLog2E);
        elements_.find_tables();
    }

    // They stay there until apply() has returned.
    __device__ void load_biases(unsigned rows) { bias_rows_ = rows; }
    __device__ void apply(Scores& scores, int first_key) {
        elements_.check_tables(first_key);
        elements_.with_sources(
            [&](auto source, auto reach) { change(source, reach, scores, first_key); });
        hide(scores, first_key);
    }

  private:
    template <typename Source, typename R>
    __device__ void change(Source source, R reach, Scores& scores, int first_key) {
        constexpr int kPart = 2 * BiasFragment::kPartPairs; // columns
        BiasFragment biases;
        const auto visit_column = [&](int j, auto visit) {
            if (kReadsBias && j % kPart == 0) biases.load(bias_rows_, j / 2, 0);
            elements_.load_tabulated(j);
            elements_.load_shifts(reach, j);
            elements_.visit_element(first_key, j, [&](int r, mod::At at) {
                if (kReadsBias) at.bias = biases.at(r, j % kPart);
                visit(r, at, scores[accumulator(r, j)] * attention_.scale);
            });
        };
        Sums sums;
#pragma unroll
        for (int j = 0; j < kFragmentColumns; ++j) {
            if (Source::kSource == TableSource::memory && elements_.ends_before(first_key, j))
                break;
            sums.find(source, elements_, first_key, j, visit_column);
            visit_column(j, [&](int r, const mod::At& at, float score) {
                scores[accumulator(r, j)] = score_of(source, sums.given(at, r, j), score);
            });
        }
    }

    unsigned bias_rows_ = 0; // of the keys' biases: the warp's first row in shared memory
};

constexpr bool kAreSums = LogitForm::kPlain && (LogitForm::kHasRowAddend || LogitForm::kMultiplies);
using SumLogits = Select<LogitForm::kHasFactor, FactoredLogits,
                         Select<LogitForm::kHasSlopedProducts, SlopedLogits, ProductLogits>>;
using PlainOrSumLogits = Select<LogitForm::kStartsWithDistances, DistanceFirstLogits,
                                Select<kAreSums, SumLogits, PlainLogits>>;
using Logits = Select<LogitForm::kPlain, PlainOrSumLogits,
                      Select<!LogitForm::kAffine, ProgramLogits,
                             Select<LogitForm::kStartsWithBias, BiasFirstLogits, AffineLogits>>>;

} // namespace sm90
