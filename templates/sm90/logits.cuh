// From products of queries and keys to logits: what the softmax takes powers of two of.
#pragma once

#include "common/math.cuh"
#include "common/place.cuh"
#include "sm90/bias_tile.cuh"
#include "sm90/forward_tabulated.cuh"
#include "sm90/score_form.h"
#include "sm90/table_reads.cuh"
#include "sm90/visible_keys.cuh"
#include "sm90/warpgroup.cuh"

namespace sm90 {

constexpr ScoreForm kForm = mod::kScoreForm;

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

// P may be as small and as large as floats.
template <typename E> constexpr bool kExponentsAreWide = true;
template <> constexpr bool kExponentsAreWide<flexc_f16> = false;

// One thread's part of the logits of a tile of queries. The exponent of an element is
//     logit * factor() + offset of its row,
// with everything that does not change within a row and a block of keys left to the offset.
class Logits {
    // Rows of the 2-D key index that a tile has; what is added for one of them is part of the base
    // where all threads agree on which of their columns are in it.
    static constexpr bool kHasIndex2dRows =
        mod::kSizes.index_2d_rows != 0 && !kMultipliesIndex2dRows;
    static constexpr int kIndex2dRows = kHasIndex2dRows ? mod::kKeyTile / mod::kKeyWidth : 1;
    static constexpr bool kRowsAreAligned = kHasIndex2dRows && mod::kKeyWidth % 8 == 0;
    static constexpr bool kSelectsRows = kHasIndex2dRows && !kRowsAreAligned;
    static constexpr bool kHasBase = kForm.has_row_addend || kRowsAreAligned;
    static constexpr int kBases = kRowsAreAligned ? kIndex2dRows : 1;
    static constexpr __device__ int base_of(int j) { return j / (kFragmentColumns / kBases); }

  public:
    static constexpr bool kAffine = mod::kHasScoreMod && kForm.is_affine;
    static constexpr bool kCapped = kAffine && kForm.is_capped;
    // Products are added to the dense bias, which is there first, instead of the other way
    // round: that needs no score, and comes under the exponents of the keys before.
    static constexpr bool kStartsWithBias = kAffine && kReadsBias && kForm.multiplier_is_one &&
                                            !kCapped && !kHasBase && !kForm.has_slope &&
                                            !kHasTabulated;
    // Logits are exponents already.
    static constexpr bool kFactorIsOne = kAffine && kForm.are_exponents;
    static constexpr bool kHasOffset = kAffine && !kCapped && kHasBase;
    // P are relative to a running maximum that does not change, see Softmax. Those of f16 would
    // vanish.
    static constexpr bool kAreBounded = kForm.exponent_bound > 0 && kForm.exponent_bound <= 74 &&
                                        kExponentsAreWide<mod::Element> && !kHasOffset;
    // apply() gives exponents relative to the running maxima so far, which lower() changes: no part
    // of a logit is left to the softmax, and the running maxima are in what repeats.
    static constexpr bool kAreRelative = kMultipliesIndex2dRows && !kAreBounded;
    // As many parts of a tile's columns have offsets of their own, in each row.
    static constexpr int kOffsets = kAffine && !kCapped ? kBases : 1;
    static constexpr __device__ int offset_of(int j) { return kOffsets == 1 ? 0 : base_of(j); }

    // tables: where they are in shared memory.
    __device__ Logits(const AttentionArguments& attention, const mod::Arguments& arguments,
                      const HeadPlace& place, const SequenceLength& length, int warp_row, int lane,
                      unsigned tables = 0)
        : attention_(attention), arguments_(arguments), place_(place), length_(length),
          rows_(length, arguments, place, warp_row + lane / 4), first_column_(lane % 4 * 2),
          keys_(length, arguments, place, rows_.row, warp_row, lane), tables_(tables) {
        factor_ = kHasScoreMod && !kStartsWithBias ? kLog2E : attention.scale * kLog2E;
        lse_shift_ = 0;
        if constexpr (kAffine) prepare_affine();
        tables_.find(
            [&](auto visit) { visit_column(0, [&](int, const mod::At& at) { visit(at); }); });
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
    // A score as a logit, rounded as addends are, so that equal ones stay equal.
    __device__ float logit(float score) const {
        return kFactorIsOne ? multiply_finite(score, kLog2E) : score * (kLog2E / factor_);
    }
    __device__ float exponent_below(float logit, float max_log2) const {
        return kFactorIsOne ? logit - max_log2 : fmaf(logit, factor_, -max_log2);
    }
    // A large logit as a score. The largest scores are the largest float in a logit's units, too.
    __device__ float natural(float logit) const {
        return natural_of(logit, kFactorIsOne ? kLn2 : factor_ * kLn2);
    }
    static __device__ float natural_of(float logit, float factor) {
        return fabsf(logit) == kMostFinite ? logit : multiply_finite(logit, factor);
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

    // What the keys from first_key on need that does not wait for their MMAs.
    __device__ void prepare(int first_key) {
        if constexpr (kAffine && kForm.has_row_addend)
            visit_column(first_key + first_column_, [&](int r, const mod::At& at) {
                base_[r][0] = in_units(mod::row_addend(at));
            });
    }
    // What is added for the rows of the 2-D key index that the tile has, from this thread's first
    // query in shared memory; after prepare().
    __device__ void load_index_2d_rows(unsigned from) {
#pragma unroll
        for (int i = kIndex2dRows - 1; i >= 0; --i)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const unsigned word = load_shared_word(from + (i * mod::kQueryTile + 8 * r) * 4);
                const float addend = in_units(__uint_as_float(word));
                if constexpr (kSelectsRows)
                    index_2d_rows_[r][i] = addend;
                else
                    base_[r][i] = kForm.has_row_addend ? base_[r][0] + addend : addend;
            }
    }
    // The biases of these keys. `rows`: the warp's first, in shared memory.
    __device__ void load_biases(unsigned rows) { biases_.load(rows); }
    // What QK of these keys are added to, from biases in shared memory, likewise.
    __device__ void start(Scores& scores, unsigned rows, int first_key) {
        look_at_tables(first_key);
        tables_.with_source([&](auto source) { start_with(source, scores, rows, first_key); });
    }

    // Where what is tabulated for these keys is in shared memory; the row is the thread's first, in
    // the tile. apply() reads them.
    __device__ void find_tabulated(unsigned slices, int row) {
        tabulated_.find(slices, row, first_column_);
    }

    // Products become logits of the keys that look() was asked about; those that are hidden become
    // -inf.
    __device__ void apply(Scores& scores, int first_key) {
        if constexpr (!kStartsWithBias) look_at_tables(first_key);
        if constexpr (kAffine && !kStartsWithBias)
            tables_.with_source([&](auto source) { change_affine(source, scores, first_key); });
        else if constexpr (kHasScoreMod && !kAffine)
            tables_.with_source([&](auto source) { change(source, scores, first_key); });
        if (kMaskIsBand ? !keys_.are_all(first_key, false) : hides_) hide(scores, first_key);
    }

    __device__ const Tables& tables() const { return tables_; }

    // The running maximum of a row rises by so much.
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
        __device__ Rows(const SequenceLength& length, const mod::Arguments& arguments,
                        const HeadPlace& place, int first) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                q[r] = length.q_idx(first + 8 * r);
                row[r] = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                     place.h_kv, q[r]);
            }
        }
    };

    template <typename Source>
    __device__ void start_with(Source source, Scores& scores, unsigned rows, int first_key) {
        constexpr int kPart = 2 * BiasFragment::kPartPairs; // columns
#pragma unroll
        for (int part = 0; part < kFragmentColumns; part += kPart) {
            biases_.load(rows, part / 2);
#pragma unroll
            for (int j = part; j < part + kPart; ++j)
                visit_element(first_key, j, [&](int r, const mod::At& at) {
                    scores[accumulator(r, j)] =
                        multiply_finite(element_addend(source, at, biases_.at(r, j)), before_[r]);
                });
        }
    }

    __device__ void look_at_tables(int first_key) {
        tables_.look([&](auto visit) { visit_lane_keys(first_key, visit); });
    }
    // Each lane's keys of those from first_key on, with one of its rows.
    template <typename Visit> __device__ void visit_lane_keys(int first_key, Visit visit) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
        for (int key = 0; key < mod::kKeyTile; key += 32) {
            const int kv = length_.kv_idx(first_key + key + lane);
            const mod::Column column = mod::at_column(arguments_, place_.launch, place_.head,
                                                      place_.b, place_.h, place_.h_kv, kv);
            const TabulatedTile::KeyValues values = tabulated_.of_key(key + lane - first_column_);
            visit(mod::At{arguments_, place_.launch, place_.head, rows_.row[0], column, place_.b,
                          place_.h, place_.h_kv, rows_.q[0], kv, values.of_key});
        }
    }

    // The element of a row and a key, and what the program computes once for that key. Memory is
    // read within the tensors only.
    template <typename Visit> __device__ void visit_column(int position, Visit visit) const {
        visit_rows(position, [](int) { return TabulatedTile::Values{}; }, visit);
    }
    // The same for the j-th column from first_key on, with what was computed before.
    template <typename Visit>
    __device__ void visit_element(int first_key, int j, Visit visit) const {
        visit_rows(
            first_key + first_column_ + column_of(j), [&](int r) { return tabulated_.of(r, j); },
            visit);
    }
    template <typename Find, typename Visit>
    __device__ void visit_rows(int position, Find values_of, Visit visit) const {
        const int inside = kForm.reads_keys ? min(position, length_.keys() - 1) : position;
        const int kv = inside + static_cast<int>(length_.kv_offset());
        // Quotients and remainders are shifts and masks then.
        if constexpr (mod::kHasKeyIndex2d) __builtin_assume(kv >= 0);
        const mod::Column column = mod::at_column(arguments_, place_.launch, place_.head, place_.b,
                                                  place_.h, place_.h_kv, kv);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const TabulatedTile::Values values = values_of(r);
            visit(r, mod::At{arguments_, place_.launch, place_.head, rows_.row[r], column, place_.b,
                             place_.h, place_.h_kv, rows_.q[r], kv, values.of_key,
                             values.of_distance, tables_.of_row(r)});
        }
    }

    // What is added for a key and a distance alone, to the j-th column. Exponents already, where
    // logits are.
    __device__ float tabulated_addend(int r, int j) const {
        float addend = kForm.has_key_addend ? tabulated_.key(0, j) : -0.0f;
        if constexpr (kForm.has_distance_addend) addend += tabulated_.distance(0, r, j);
        return kFactorIsOne ? addend : addend * unit_;
    }

    // What is added to a score, in a logit's units. Finite numbers stay finite: only -inf hides.
    __device__ float in_units(float addend) const {
        return kFactorIsOne ? multiply_finite(addend, kLog2E) : addend * unit_;
    }

    // Of the j-th column. Eight neighbouring columns are in at most two rows of the index_2d, and
    // which of them a column is in depends on the thread.
    __device__ float index_2d_row(int r, int j) const {
        const int low = j / 2 * 8 / mod::kKeyWidth, high = (j / 2 * 8 + 7) / mod::kKeyWidth;
        if (low == high) return index_2d_rows_[r][low];
        return first_column_ + column_of(j) < high * mod::kKeyWidth ? index_2d_rows_[r][low]
                                                                    : index_2d_rows_[r][high];
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
            if constexpr (kForm.has_slope) slope_[r] = mod::slope(at) * unit;
        });
        if constexpr (kKeepsColumns) {
#pragma unroll
            for (int j = 0; j < kFragmentColumns; ++j)
                column_part_[j] = slope_[0] * static_cast<float>(column_of(j));
        }
        // Tiles are whole periods: what repeats in the first is that of all.
        if constexpr (kForm.has_remainder_addend) {
#pragma unroll
            for (int j = 0; j < kPeriodColumns; ++j)
                visit_column(first_column_ + column_of(j), [&](int r, const mod::At& at) {
                    repeated_[r][j] = in_units(mod::remainder_addend(at));
                });
        } else if constexpr (kAreRelative) {
            repeated_[0][0] = repeated_[1][0] = 0;
        }
    }

    // Addends of the columns from `first` on: guessed at once, so that none waits for another, and
    // found again where there is a doubt.
    static constexpr int kGuessed = 4;
    template <typename Source>
    static constexpr bool kGuesses =
        kForm.has_element_addend && mod::kGuessesLogs && Source::kSource != TableSource::memory;
    template <typename Source>
    __device__ void guess(Source source, int first_key, int first, float (&addends)[kGuessed][2]) {
        bool doubt = false;
#pragma unroll
        for (int j = 0; j < kGuessed; ++j) {
            if (kHasTabulated && (first + j) % 2 == 0) tabulated_.load((first + j) / 2);
            visit_element(first_key, first + j, [&](int r, mod::At at) {
                at.doubt = &doubt;
                addends[j][r] = element_addend(source, at, 0);
            });
        }
        if (!doubt) return;
        // One after the other: written out, they would be most of the kernel's text.
#pragma unroll 1
        for (int which = 0; which < 2 * kGuessed; ++which) {
            const float exact = find_exactly(first_key, first + which / 2, which % 2);
#pragma unroll
            for (int i = 0; i < 2 * kGuessed; ++i)
                addends[i / 2][i % 2] = i == which ? exact : addends[i / 2][i % 2];
        }
    }
    // Of a row and a column that no register is named by.
    __device__ float find_exactly(int first_key, int j, int r) const {
        const int column = column_of(j);
        const int kv = length_.kv_idx(first_key + first_column_ + column);
        const mod::Column of_key = mod::at_column(arguments_, place_.launch, place_.head, place_.b,
                                                  place_.h, place_.h_kv, kv);
        const mod::Row row = r == 0 ? rows_.row[0] : rows_.row[1];
        unsigned tables[mod::kStagedTables ? mod::kStagedTables : 1];
#pragma unroll
        for (int table = 0; table < mod::kStagedTables; ++table)
            tables[table] = r == 0 ? tables_.of_row(0)[table] : tables_.of_row(1)[table];
        const TabulatedTile::KeyValues values = tabulated_.of_key(column);
        const mod::At at{arguments_, place_.launch, place_.head,
                         row,        of_key,        place_.b,
                         place_.h,   place_.h_kv,   r == 0 ? rows_.q[0] : rows_.q[1],
                         kv,         values.of_key, nullptr,
                         tables};
        return element_addend(SourceOf<TableSource::exact>{}, at, 0);
    }

    template <typename Source>
    __device__ void change_affine(Source source, Scores& scores, int first_key) {
        float guessed[kGuessed][2];
#pragma unroll
        for (int j = 0; j < kFragmentColumns; ++j) {
            if (Source::kSource == TableSource::memory && kLimitsReads && ends_before(first_key, j))
                break;
            if (kHasTabulated && !kGuesses<Source> && j % 2 == 0) tabulated_.load(j / 2);
            const auto finish = [&](int r, float addend) {
                float& score = scores[accumulator(r, j)];
                if constexpr (kForm.has_slope)
                    addend += kKeepsColumns ? column_part_[j]
                                            : slope_[kForm.slope_is_of_head ? 0 : r] *
                                                  static_cast<float>(column_of(j));
                if constexpr (kForm.has_key_addend || kForm.has_distance_addend)
                    addend += tabulated_addend(r, j);
                if constexpr (kForm.has_remainder_addend || kAreRelative)
                    addend += repeated_[r][j % kPeriodColumns];
                if constexpr (kSelectsRows) addend += index_2d_row(r, j);
                if constexpr (!kHasOffset && kHasBase) addend += base_[r][base_of(j)];
                score = fmaf(score, before_[r], addend);
                if constexpr (kCapped)
                    score = kTanhIsExact<mod::Element> ? reciprocal_fast(1 + exp2_fast(score))
                                                       : tanh_fast(score);
            };
            if constexpr (kGuesses<Source>) {
                if (j % kGuessed == 0) guess(source, first_key, j, guessed);
                finish(0, in_units(guessed[j % kGuessed][0]));
                finish(1, in_units(guessed[j % kGuessed][1]));
            } else if constexpr (kForm.has_element_addend) {
                visit_element(first_key, j, [&](int r, const mod::At& at) {
                    const float bias = kReadsBias ? biases_.at(r, j) : 0;
                    finish(r, in_units(element_addend(source, at, bias)));
                });
            } else {
                // Unlike 0, -0 is the same as nothing in a sum.
                finish(0, -0.0f);
                finish(1, -0.0f);
            }
        }
    }

    template <typename Source>
    __device__ void change(Source source, Scores& scores, int first_key) {
#pragma unroll
        for (int j = 0; j < kFragmentColumns; ++j) {
            if (Source::kSource == TableSource::memory && ends_before(first_key, j)) break;
            if (kHasTabulated && j % 2 == 0) tabulated_.load(j / 2);
            visit_element(first_key, j, [&](int r, const mod::At& at) {
                float& score = scores[accumulator(r, j)];
                score = score_of(source, at, score * attention_.scale);
            });
        }
    }
    // What the program computes for an element, with its tables from where they are.
    static __device__ float score_of(SourceOf<TableSource::inside>, const mod::At& at, float x) {
        return mod::staged_score(at, x);
    }
    static __device__ float score_of(SourceOf<TableSource::checked>, const mod::At& at, float x) {
        return mod::checked_score(at, x);
    }
    static __device__ float score_of(SourceOf<TableSource::memory>, const mod::At& at, float x) {
        return mod::score(at, x);
    }
    static __device__ float element_addend(SourceOf<TableSource::inside>, const mod::At& at,
                                           float bias) {
        return mod::staged_element_addend(at, bias);
    }
    static __device__ float element_addend(SourceOf<TableSource::checked>, const mod::At& at,
                                           float bias) {
        return mod::checked_element_addend(at, bias);
    }
    static __device__ float element_addend(SourceOf<TableSource::exact>, const mod::At& at,
                                           float bias) {
        return mod::exact_element_addend(at, bias);
    }
    static __device__ float element_addend(SourceOf<TableSource::memory>, const mod::At& at,
                                           float bias) {
        return mod::element_addend(at, bias);
    }

    // Three warpgroups have no registers for what a branch keeps.
    static constexpr bool kLimitsReads =
        kForm.has_element_addend && !kReadsBias && mod::kQueryTile == 128;

    // Whether the keys end before the j-th column, asked once for the few columns whose reads may
    // be in flight together.
    __device__ bool ends_before(int first_key, int j) const {
        constexpr int kGroup = 4;
        return kForm.reads_keys && j % kGroup == 0 && first_key + 4 * j >= length_.keys();
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
    static constexpr bool kKeepsColumns = kAffine && kForm.has_slope && kForm.slope_is_of_head &&
                                          mod::kHasRegistersForColumns && !kHasTabulated;

    const AttentionArguments& attention_;
    const mod::Arguments& arguments_;
    const HeadPlace& place_;
    const SequenceLength length_;
    Rows rows_;
    int first_column_; // of this thread, in a tile of keys
    VisibleKeys keys_;
    Tables tables_;
    float factor_, lse_shift_, unit_;
    float base_[2][kBases];      // what is added for whole rows, to these keys
    float before_[2], slope_[2]; // what scores, or biases that come before, are multiplied by
    float index_2d_rows_[2][kSelectsRows ? kIndex2dRows
                                         : 1]; // what is added for rows of the 2-D key index
    // What is added for columns of that 2-D key index: of the thread's columns in a period of eight
    // keys and of the index_2d. Less the running maximum so far where logits are relative.
    static constexpr int kPeriodColumns =
        kForm.has_remainder_addend ? least_common_multiple(mod::kKeyWidth, 8) / 4 : 1;
    float repeated_[2][kPeriodColumns];
    bool hides_;          // something of the keys that are looked at
    unsigned visible_[2]; // of them, where a mask is no band
    BiasFragment biases_;
    TabulatedTile tabulated_;
    float column_part_[kKeepsColumns ? kFragmentColumns : 1];
};

} // namespace sm90
