// From products of queries and keys to logits: what the softmax takes powers of two of.
#pragma once

#include "common/math.cuh"
#include "common/place.cuh"
#include "sm90/bias_tile.cuh"
#include "sm90/forward_terms.cuh"
#include "sm90/visible_keys.cuh"
#include "sm90/warpgroup.cuh"

namespace sm90 {

constexpr int kScores = mod::kKeyTile / 2;    // accumulators of a thread
constexpr int kFragmentColumns = kScores / 2; // columns that they are in, of two rows each
using Scores = float[kScores];

// Accumulator i is in row 8 * fragment_row(i) and column fragment_column(i) from a thread's first.
constexpr __device__ int fragment_row(int i) { return i / 2 % 2; }
constexpr __device__ int fragment_column(int i) { return i / 4 * 8 + i % 2; }
// The accumulator of a row and the j-th of a thread's columns, and where that column is.
constexpr __device__ int accumulator(int row, int j) { return j / 2 * 4 + 2 * row + j % 2; }
constexpr __device__ int column_of(int j) { return j / 2 * 8 + j % 2; }

constexpr int least_common_multiple(int x, int y) {
    int multiple = x;
    while (multiple % y != 0)
        multiple += x;
    return multiple;
}

// tanh of bf16 attention's logits may be off by 2^-11; f16 keeps more, and gets a logistic function
// of full accuracy instead: cap * tanh(x) = 2 * cap * logistic(2 x) - cap.
template <typename E> constexpr bool kTanhIsExact = false;
template <> constexpr bool kTanhIsExact<flexc_f16> = true;

// Weights may be as small and as large as floats.
template <typename E> constexpr bool kExponentsAreWide = true;
template <> constexpr bool kExponentsAreWide<flexc_f16> = false;

// One thread's part of the logits of a tile of queries. The exponent of an element is
//     logit * factor() + offset of its row,
// with everything that does not change within a row and a block of keys left to the offset.
class Logits {
    // Rows of the grid of keys that a tile has; what is added for one of them is part of the base
    // where all threads agree on which of their columns are in it.
    static constexpr bool kHasGridRows = mod::kHasQuotientAddend && !mod::kMultipliesGridRows;
    static constexpr int kGridRows = kHasGridRows ? mod::kKeyTile / mod::kKeyWidth : 1;
    static constexpr bool kRowsAreAligned = kHasGridRows && mod::kKeyWidth % 8 == 0;
    static constexpr bool kSelectsRows = kHasGridRows && !kRowsAreAligned;
    static constexpr bool kHasBase = mod::kHasRowAddend || kRowsAreAligned;
    static constexpr int kBases = kRowsAreAligned ? kGridRows : 1;
    static constexpr __device__ int base_of(int j) { return j / (kFragmentColumns / kBases); }

  public:
    static constexpr bool kAffine = mod::kHasScoreMod && mod::kScoreIsAffine;
    static constexpr bool kCapped = kAffine && mod::kScoreIsCapped;
    // Products are added to what the matrix adds, which is there first, instead of the other way
    // round: that needs no score, and comes under the exponents of the keys before.
    static constexpr bool kStartsWithBias = kAffine && mod::kReadsBias && mod::kMultiplierIsOne &&
                                            !kCapped && !kHasBase && !mod::kHasSlope && !kHasTerms;
    // Logits are exponents already.
    static constexpr bool kFactorIsOne = kAffine && mod::kLogitsAreExponents;
    static constexpr bool kHasOffset = kAffine && !kCapped && kHasBase;
    // Weights are relative to a level that does not change, see Softmax. Those of f16 would vanish.
    static constexpr bool kAreBounded = mod::kExponentBound > 0 && mod::kExponentBound <= 74 &&
                                        kExponentsAreWide<mod::Element> && !kHasOffset;
    // apply() gives exponents relative to the levels so far, which lower() changes: no part of a
    // logit is left to the softmax, and the levels are in what repeats.
    static constexpr bool kAreRelative = mod::kMultipliesGridRows && !kAreBounded;
    // As many parts of a tile's columns have offsets of their own, in each row.
    static constexpr int kOffsets = kAffine && !kCapped ? kBases : 1;
    static constexpr __device__ int offset_of(int j) { return kOffsets == 1 ? 0 : base_of(j); }

    __device__ Logits(const AttentionArguments& attention, const mod::Arguments& arguments,
                      const HeadPlace& place, int warp_row, int lane)
        : attention_(attention), arguments_(arguments), place_(place),
          rows_(attention, arguments, place, warp_row + lane / 4), first_column_(lane % 4 * 2),
          keys_(attention, arguments, place, rows_.row, warp_row, lane) {
        factor_ = kHasScoreMod && !kStartsWithBias ? kLog2E : attention.scale * kLog2E;
        lse_shift_ = 0;
        if constexpr (kAffine) prepare_affine();
    }

    __device__ float factor() const { return kFactorIsOne ? 1.0f : factor_; }
    __device__ float offset(int row, int part) const {
        return kHasOffset ? base_[row][part] : 0.0f;
    }
    // A logit without its offset, or a maximum with it, as an exponent. Rounded alike everywhere,
    // so that a maximum that stays shrinks by exactly 1.
    __device__ float exponent(float logit) const {
        return kFactorIsOne ? logit : __fmul_rn(logit, factor_);
    }
    __device__ float exponent_below(float logit, float origin) const {
        return kFactorIsOne ? logit - origin : fmaf(logit, factor_, -origin);
    }
    __device__ float lse_shift() const { return lse_shift_; }

    // Which of the keys from first_key on a mask that is no band hides. Knows nothing of scores, so
    // that it may come while they are multiplied. mask_shows_all: it hides none of them.
    __device__ void look(int first_key, bool mask_shows_all) {
        if constexpr (!kMaskIsBand) {
            hides_ = !keys_.are_all(first_key, mask_shows_all);
            if (hides_) keys_.find(visible_, first_key, rows_.row);
        }
    }

    // What the keys from first_key on need that does not wait for their products.
    __device__ void prepare(int first_key) {
        if constexpr (kAffine && mod::kHasRowAddend)
            visit_column(first_key + first_column_, [&](int r, const mod::At& at) {
                base_[r][0] = mod::row_addend(at) * unit_;
            });
    }
    // What is added for the rows of the grid of keys that the tile has, from this thread's first
    // query in shared memory; after prepare().
    __device__ void load_grid_rows(unsigned from) {
#pragma unroll
        for (int i = kGridRows - 1; i >= 0; --i)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const unsigned word = load_shared_word(from + (i * mod::kQueryTile + 8 * r) * 4);
                const float addend = __uint_as_float(word) * unit_;
                if constexpr (kSelectsRows)
                    grid_rows_[r][i] = addend;
                else
                    base_[r][i] = mod::kHasRowAddend ? base_[r][0] + addend : addend;
            }
    }
    // The biases of these keys. `rows`: the warp's first, in shared memory.
    __device__ void load_biases(unsigned rows) { biases_.load(rows); }
    // What products of these keys are added to, from biases in shared memory, likewise.
    __device__ void start(Scores& scores, unsigned rows, int first_key) {
        constexpr int kPart = 2 * BiasFragment::kPartPairs; // columns
#pragma unroll
        for (int part = 0; part < kFragmentColumns; part += kPart) {
            biases_.load(rows, part / 2);
#pragma unroll
            for (int j = part; j < part + kPart; ++j)
                visit_element(first_key, j, [&](int r, const mod::At& at) {
                    scores[accumulator(r, j)] =
                        mod::element_addend(at, biases_.at(r, j)) * before_[r];
                });
        }
    }

    // Where the terms of these keys are in shared memory; the row is the thread's first, in the
    // tile. apply() reads them.
    __device__ void find_terms(unsigned slices, int row) {
        terms_.find(slices, row, first_column_);
    }

    // Products become logits of the keys that look() was asked about; those that are hidden become
    // -inf.
    __device__ void apply(Scores& scores, int first_key) {
        if constexpr (kAffine && !kStartsWithBias)
            change_affine(scores, first_key);
        else if constexpr (kHasScoreMod && !kAffine)
            change(scores, first_key);
        if (kMaskIsBand ? !keys_.are_all(first_key, false) : hides_) hide(scores, first_key);
    }

    // The level of a row rises by so much.
    __device__ void lower(int r, float by) {
#pragma unroll
        for (int j = 0; j < kPeriodColumns; ++j)
            repeated_[r][j] -= by;
    }

  private:
    static constexpr bool kHasScoreMod = mod::kHasScoreMod;
    static constexpr bool kMaskIsBand = VisibleKeys::kMaskIsBand;

    // The thread's two rows.
    struct Rows {
        int q[2];
        mod::Row row[2];
        __device__ Rows(const AttentionArguments& attention, const mod::Arguments& arguments,
                        const HeadPlace& place, int first) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                q[r] =
                    min(first + 8 * r, attention.q_len - 1) + static_cast<int>(attention.q_offset);
                row[r] = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                     place.h_kv, q[r]);
            }
        }
    };

    // The element of a row and a key, and what the program computes once for that key. Memory is
    // read within the tensors only.
    template <typename Visit> __device__ void visit_column(int position, Visit visit) const {
        visit_rows(position, [](int) { return Terms::Values{}; }, visit);
    }
    // The same for the j-th column from first_key on, with what was computed before.
    template <typename Visit>
    __device__ void visit_element(int first_key, int j, Visit visit) const {
        visit_rows(
            first_key + first_column_ + column_of(j), [&](int r) { return terms_.of(r, j); },
            visit);
    }
    template <typename Find, typename Visit>
    __device__ void visit_rows(int position, Find values_of, Visit visit) const {
        const int inside = mod::kReadsKeys ? min(position, attention_.kv_len - 1) : position;
        const int kv = inside + static_cast<int>(attention_.kv_offset);
        // Quotients and remainders are shifts and masks then.
        if constexpr (mod::kKeysAreGrid) __builtin_assume(kv >= 0);
        const mod::Column column = mod::at_column(arguments_, place_.launch, place_.head, place_.b,
                                                  place_.h, place_.h_kv, kv);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const Terms::Values values = values_of(r);
            visit(r, mod::At{arguments_, place_.launch, place_.head, rows_.row[r], column, place_.b,
                             place_.h, place_.h_kv, rows_.q[r], kv, values.of_key,
                             values.of_distance});
        }
    }

    // What is added for a key and a distance alone, to the j-th column. Exponents already, where
    // logits are.
    __device__ float term(int r, int j) const {
        float addend = mod::kHasKeyAddend ? terms_.key(0, j) : -0.0f;
        if constexpr (mod::kHasDistanceAddend) addend += terms_.distance(0, r, j);
        return kFactorIsOne ? addend : addend * unit_;
    }

    // Of the j-th column. Eight neighbouring columns are in at most two rows of the grid, and
    // which of them a column is in depends on the thread.
    __device__ float grid_row(int r, int j) const {
        const int low = j / 2 * 8 / mod::kKeyWidth, high = (j / 2 * 8 + 7) / mod::kKeyWidth;
        if (low == high) return grid_rows_[r][low];
        return first_column_ + column_of(j) < high * mod::kKeyWidth ? grid_rows_[r][low]
                                                                    : grid_rows_[r][high];
    }

    __device__ void prepare_affine() {
        if constexpr (kStartsWithBias) {
            before_[0] = before_[1] = 1 / attention_.scale;
            return;
        }
        visit_column(0, [&](int r, const mod::At& at) {
            float scale = attention_.scale * mod::multiplier(at);
            float unit = kFactorIsOne ? kLog2E : 1; // of what is added
            if constexpr (kCapped) {
                // The sign of the cap moves into the tanh. A cap of 0 must not meet -inf.
                const float cap = mod::cap(at), size = cap == 0 ? 1e-30f : fabsf(cap);
                unit = cap < 0 ? -1.0f : 1.0f;
                if constexpr (kTanhIsExact<mod::Element>) unit *= -2 * kLog2E;
                factor_ = (kTanhIsExact<mod::Element> ? 2 : 1) * size * kLog2E;
                lse_shift_ = kTanhIsExact<mod::Element> ? -size * kLog2E : 0;
            }
            before_[r] = scale * unit;
            unit_ = unit;
            if constexpr (mod::kHasSlope) slope_[r] = mod::slope(at) * unit;
        });
        if constexpr (kKeepsColumns) {
#pragma unroll
            for (int j = 0; j < kFragmentColumns; ++j)
                column_part_[j] = slope_[0] * static_cast<float>(column_of(j));
        }
        // Tiles are whole periods: what repeats in the first is that of all.
        if constexpr (mod::kHasRemainderAddend) {
#pragma unroll
            for (int j = 0; j < kPeriodColumns; ++j)
                visit_column(first_column_ + column_of(j), [&](int r, const mod::At& at) {
                    repeated_[r][j] = mod::remainder_addend(at) * unit_;
                });
        } else if constexpr (kAreRelative) {
            repeated_[0][0] = repeated_[1][0] = 0;
        }
    }

    __device__ void change_affine(Scores& scores, int first_key) {
#pragma unroll
        for (int j = 0; j < kFragmentColumns; ++j) {
            if (kLimitsReads && ends_before(first_key, j)) break;
            if (kHasTerms && j % 2 == 0) terms_.load(j / 2);
            const auto finish = [&](int r, float addend) {
                float& score = scores[accumulator(r, j)];
                if constexpr (mod::kHasSlope)
                    addend += kKeepsColumns ? column_part_[j]
                                            : slope_[mod::kSlopeIsOfHead ? 0 : r] *
                                                  static_cast<float>(column_of(j));
                if constexpr (mod::kHasKeyAddend || mod::kHasDistanceAddend) addend += term(r, j);
                if constexpr (mod::kHasRemainderAddend || kAreRelative)
                    addend += repeated_[r][j % kPeriodColumns];
                if constexpr (kSelectsRows) addend += grid_row(r, j);
                if constexpr (!kHasOffset && kHasBase) addend += base_[r][base_of(j)];
                score = fmaf(score, before_[r], addend);
                if constexpr (kCapped)
                    score = kTanhIsExact<mod::Element> ? reciprocal_fast(1 + exp2_fast(score))
                                                       : tanh_fast(score);
            };
            if constexpr (mod::kHasElementAddend) {
                visit_element(first_key, j, [&](int r, const mod::At& at) {
                    const float bias = mod::kReadsBias ? biases_.at(r, j) : 0;
                    finish(r, mod::element_addend(at, bias) * unit_);
                });
            } else {
                // Unlike 0, -0 is the same as nothing in a sum.
                finish(0, -0.0f);
                finish(1, -0.0f);
            }
        }
    }

    __device__ void change(Scores& scores, int first_key) {
#pragma unroll
        for (int j = 0; j < kFragmentColumns; ++j) {
            if (ends_before(first_key, j)) break;
            if (kHasTerms && j % 2 == 0) terms_.load(j / 2);
            visit_element(first_key, j, [&](int r, const mod::At& at) {
                float& score = scores[accumulator(r, j)];
                score = mod::score(at, score * attention_.scale);
            });
        }
    }

    // Three warpgroups have no registers for what a branch keeps.
    static constexpr bool kLimitsReads =
        mod::kHasElementAddend && !mod::kReadsBias && mod::kQueryTile == 128;

    // Whether the keys end before the j-th column, asked once for the few columns whose reads may
    // be in flight together.
    __device__ bool ends_before(int first_key, int j) const {
        constexpr int kGroup = 4;
        return mod::kReadsKeys && j % kGroup == 0 && first_key + 4 * j >= attention_.kv_len;
    }

    __device__ void hide(Scores& scores, int first_key) const {
        static_assert(kFragmentColumns <= 32, "one bit each");
        unsigned visible[2] = {visible_[0], visible_[1]};
        if constexpr (kMaskIsBand) keys_.find(visible, first_key, rows_.row);
#pragma unroll
        for (int j = 0; j < kFragmentColumns; ++j)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float& score = scores[accumulator(r, j)];
                score = if_visible(score, visible[r], j);
            }
    }

    // Slopes times columns stay in registers where there is room for them.
    static constexpr bool kKeepsColumns = kAffine && mod::kHasSlope && mod::kSlopeIsOfHead &&
                                          mod::kHasRegistersForColumns && !kHasTerms;

    const AttentionArguments& attention_;
    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    Rows rows_;
    int first_column_; // of this thread, in a tile of keys
    VisibleKeys keys_;
    float factor_, lse_shift_, unit_;
    float base_[2][kBases];      // what is added for whole rows, to these keys
    float before_[2], slope_[2]; // what scores, or biases that come before, are multiplied by
    float grid_rows_[2][kSelectsRows ? kGridRows : 1]; // what is added for rows of the grid of keys
    // What is added for columns of that grid: of the thread's columns in a period of eight keys
    // and of the grid. Less the level so far where logits are relative.
    static constexpr int kPeriodColumns =
        mod::kHasRemainderAddend ? least_common_multiple(mod::kKeyWidth, 8) / 4 : 1;
    float repeated_[2][kPeriodColumns];
    bool hides_;          // something of the keys that are looked at
    unsigned visible_[2]; // of them, where a mask is no band
    BiasFragment biases_;
    Terms terms_;
    float column_part_[kKeepsColumns ? kFragmentColumns : 1];
};

} // namespace sm90
