// Logits of scores that are a multiple of products with addends, which may be capped.
#pragma once

#include "sm90/column_sums.cuh"
#include "sm90/element_addend.cuh"
#include "sm90/key_addend.cuh"
#include "sm90/logit_addends.cuh"
#include "sm90/logit_cap.cuh"
#include "sm90/parts_of_columns.cuh"
#include "sm90/plain_logits.cuh"

namespace sm90 {

#ifdef FLEXC_IS_AFFINE

class AffineLogits : public PlainLogits {
  public:
    __device__ AffineLogits(const AttentionArguments& attention, const mod::Arguments& arguments,
                            const HeadPlace& place, const SequenceLength& length, int warp_row,
                            int lane, unsigned tables = 0)
        : PlainLogits(attention, arguments, place, length, warp_row, lane, tables) {
        elements_.visit_column(0, [&](int r, const mod::At& at) {
            const float scale = attention.scale * mod::multiplier(at);
            units() = LogitCap::units(at);
            before_[r] = scale * of_addends();
            slope_.find(r, at, of_addends());
        });
        slope_.multiply_columns();
        repeated_.prepare(elements_, *this);
        elements_.find_tables();
    }

    __device__ void prepare(int first_key) { rows_.prepare(elements_, *this, first_key); }
    __device__ void load_index_2d_rows(unsigned from) {
#pragma unroll
        for (int i = kIndex2dRowsOfTile - 1; i >= 0; --i)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const unsigned word = load_shared_word(from + (i * mod::kQueryTile + 8 * r) * 4);
                index_2d_rows_.put(rows_, r, i, of_addend(__uint_as_float(word)));
            }
    }
    __device__ void load_biases(unsigned rows) { biases_.load(rows); }
    __device__ void apply(Scores& scores, int first_key) {
        elements_.check_tables(first_key);
        elements_.with_sources(
            [&](auto source, auto reach) { change(source, reach, scores, first_key); });
        hide(scores, first_key);
    }

    __device__ float offset(int r, int part) const { return kHasOffset ? rows_.of(r, part) : 0; }
    __device__ void lower(int r, float by, float reference) {
        repeated_.lower(r, by);
        rows_.refer(r, reference);
    }

  private:
    // Whether reads end where the range of keys does. Three warpgroups have no registers for what
    // such a branch keeps.
    static constexpr bool kLimitsReads =
        kForm.has_element_addend && !kCopiesBiases && mod::kQueryTile == 128;

    template <typename Source, typename R>
    __device__ void change(Source source, R reach, Scores& scores, int first_key) {
        const auto ends_before = [&](int j) {
            return Source::kSource == TableSource::memory && kLimitsReads &&
                   elements_.ends_before(first_key, j);
        };
        if constexpr (mod::ForwardSchedule::kComputesInParts && kForm.has_element_addend &&
                      !kReadsBias && !kGuesses<Source>)
            return PartsOfColumns<2 * kPartPairs>::visit(
                elements_, first_key, [&](int j) { return !ends_before(j); },
                [&](int, int, const mod::At& at) {
                    return of_addend(element_addend(source, at, 0));
                },
                [&](int r, int j, bool is_found, float addend) {
                    float& score = scores[accumulator(r, j)];
                    score = is_found ? logit_of(score, addend, r, j) : score;
                });
        ElementAddend<Source> addends;
        Sums sums;
#pragma unroll
        for (int j = 0; j < kFragmentColumns; ++j) {
            if (ends_before(j)) break;
            sums.find(source, elements_, first_key, j, [&](int column, auto visit) {
                visit_column(source, reach, biases_, first_key, column, visit);
            });
            elements_.load_shifts(reach, j);
            elements_.load_tables(source, j);
            addends.visit(source, units(), elements_, biases_, sums, first_key, j,
                          [&](int r, float addend) {
                              float& score = scores[accumulator(r, j)];
                              score = logit_of(score, addend, r, j);
                          });
        }
    }
    __device__ float logit_of(float score, float addend, int r, int j) const {
        return LogitCap::apply(fmaf(score, before_[r], sum(addend, r, j)));
    }
    // Returns the sum of all addends of an element, one of which is its own (`addend`).
    __device__ float sum(float addend, int r, int j) const {
        if constexpr (kLineIsRelative) addend = rows_.add_to(addend, r, j);
        addend = slope_.add_to(addend, r, j);
        addend = TabulatedAddends::add_to(addend, elements_, units(), r, j);
        addend = repeated_.add_to(addend, r, j);
        addend = index_2d_rows_.add_to(addend, elements_.first_column(), r, j);
        return kLineIsRelative ? addend : rows_.add_to(addend, r, j);
    }

    float before_[2]; // factors of the two rows' products
    RowAddends rows_;
    Index2dRowAddends index_2d_rows_;
    Slope slope_;
    RepeatedAddends repeated_;
    BiasFragment biases_;
};

// Starts the accumulators with the bias, or with what is read from tables, in units of products.
class BiasFirstLogits : public PlainLogits {
  public:
    __device__ BiasFirstLogits(const AttentionArguments& attention, const mod::Arguments& arguments,
                               const HeadPlace& place, const SequenceLength& length, int warp_row,
                               int lane, unsigned tables = 0)
        : PlainLogits(attention, arguments, place, length, warp_row, lane, tables),
          before_(1 / attention.scale) {
        if constexpr (kHasRowAddend && !kMultipliesSlope) find_rows(0);
        elements_.find_tables();
    }

    __device__ void prepare(int first_key) {
        if constexpr (kMultipliesSlope) find_rows(first_key);
    }
    __device__ void start(Scores& scores, unsigned rows, int first_key) {
        elements_.check_tables(first_key);
        elements_.use_shifts(rows);
        if (elements_.shifts().sums_ends())
            return elements_.shifts().start_with_ends(scores, offsets_);
        offsets_[0] = offsets_[1] = 0;
        elements_.with_sources(
            [&](auto source, auto reach) { start_with(source, reach, scores, rows, first_key); });
    }

    // Returns the offset of row r, for the keys with which start() and prepare() were called last.
    __device__ float offset(int r, int) const {
        const float ends = kSumsShiftedEnds ? offsets_[r] : 0;
        if (!kHasRowAddend) return ends;
        return kSumsShiftedEnds ? sum_of(ends, rows_[r]) : rows_[r];
    }

  private:
    // Rounded to nearest, as tiles without ends round their sums. A sum of finite numbers stays
    // finite: only -inf hides.
    static __device__ float sum_of(float ends, float row) {
        const float sum = ends + row;
        return fabsf(sum) == -negative_infinity() ? __fadd_rz(ends, row) : sum;
    }
    // Finds what is added to rows at this key, in units of products.
    __device__ void find_rows(int key) {
        elements_.visit_column(key, [&](int r, const mod::At& at) {
            rows_[r] = in_products(mod::row_addend(at), attention_.scale);
        });
    }
    template <typename Source, typename R>
    __device__ void start_with(Source source, R reach, Scores& scores, unsigned rows,
                               int first_key) {
        if constexpr (mod::ForwardSchedule::kComputesInParts) {
            constexpr int kLeast = BiasFragment::kLeastPairs;
            constexpr int kPairs = kPartPairs < kLeast ? kLeast : kPartPairs;
            return PartsOfColumns<2 * kPairs>::visit(
                elements_, first_key,
                [&](int first) {
                    if constexpr (kReadsBias) biases_.load<kPairs>(rows, first / 2, 0);
                    return true;
                },
                [&](int r, int i, const mod::At& at) { return start_of(source, at, r, i); },
                [&](int r, int j, bool is_found, float start) {
                    float& score = scores[accumulator(r, j)];
                    score = is_found ? start : score;
                });
        }
        constexpr int kPart = 2 * BiasFragment::kPartPairs; // columns
        const auto load_biases = [&](int j) {
            if (kReadsBias && j % kPart == 0) biases_.load(rows, j / 2, j / 2);
        };
        Sums sums;
#pragma unroll
        for (int part = 0; part < kFragmentColumns; part += kPart) {
#pragma unroll
            for (int j = part; j < part + kPart; ++j) {
                sums.find(source, elements_, first_key, j, [&](int column, auto visit) {
                    load_biases(column);
                    visit_column(source, reach, biases_, first_key, column, visit);
                });
                load_biases(j);
                elements_.load_tabulated(j);
                elements_.load_shifts(reach, j);
                elements_.load_tables(source, j);
                elements_.visit_element(first_key, j, [&](int r, const mod::At& at) {
                    scores[accumulator(r, j)] = start_of(source, sums.given(at, r, j), r, j);
                });
            }
        }
    }
    // Returns the start of an element, with the bias of the fragment's j-th column.
    template <typename Source>
    __device__ float start_of(Source source, const mod::At& at, int r, int j) const {
        const float bias = kReadsBias ? biases_.at(r, j) : 0;
        const float addend = element_addend(source, at, bias);
        return kScalesTables ? addend : multiply_finite(addend, before_);
    }

    float before_, offsets_[2] = {0, 0}, rows_[2];
    BiasFragment biases_;
};

#endif

} // namespace sm90
