// Addends of scores that need not be computed for each element: for whole rows and blocks of keys,
// by a slope, from tabulated values, and what repeats from tile to tile. A class for each, and an
// empty one where a program has none.
#pragma once

#include "common/select.h"
#include "sm90/key_width.cuh"
#include "sm90/logit_units.cuh"
#include "sm90/score_elements.cuh"
#include "sm90/warpgroup.cuh"

namespace sm90 {

#ifdef FLEXC_IS_AFFINE

// Addend of a row in one part of a tile's columns; the softmax has it as an offset where it can.
struct NoRowAddend {
    static __device__ void prepare(const ScoreElements&, const LogitUnits&, int) {}
    static __device__ void put(int, int, float) {}
    static __device__ float of(int, int) { return 0; }
    static __device__ float add_to(float addend, int, int) { return addend; }
    static __device__ void refer(int, float) {}
};
class PartAddend {
  public:
    static __device__ void prepare(const ScoreElements&, const LogitUnits&, int) {}
    // Called for the last part of a row first.
    __device__ void put(int r, int part, float addend) { base_[r][part] = addend; }
    __device__ float of(int r, int part) const { return base_[r][part]; }
    __device__ float add_to(float addend, int r, int j) const {
        return LogitForm::kHasOffset ? addend : addend + base_[r][LogitForm::base_of(j)];
    }
    static __device__ void refer(int, float) {}

  protected:
    float base_[2][LogitForm::kBases];
};
class RowAddend : public PartAddend {
  public:
    // Called for a tile of keys that begins at first_key.
    __device__ void prepare(const ScoreElements& elements, const LogitUnits& units, int first_key) {
        elements.visit_column(first_key + elements.first_column(), [&](int r, const mod::At& at) {
            base_[r][0] = units.of_addend(mod::row_addend(at));
        });
    }
    __device__ void put(int r, int part, float addend) { base_[r][part] = base_[r][0] + addend; }
};
// The row's addend less what logits are relative to.
class RelativeRowAddend : public RowAddend {
  public:
    __device__ RelativeRowAddend() { reference_[0] = reference_[1] = 0; }

    __device__ void prepare(const ScoreElements& elements, const LogitUnits& units, int first_key) {
        RowAddend::prepare(elements, units, first_key);
#pragma unroll
        for (int r = 0; r < 2; ++r)
            base_[r][0] -= reference_[r];
    }
    __device__ void refer(int r, float reference) { reference_[r] = reference; }

  private:
    float reference_[2];
};
using RowAddends = Select<LogitForm::kHasRowAddend,
                          Select<LogitForm::kLineIsRelative, RelativeRowAddend, RowAddend>,
                          Select<LogitForm::kHasBase, PartAddend, NoRowAddend>>;

// Addends by rows of the 2-D key index that the tile has: part of those of whole rows, where all
// threads agree on which of their columns are in one row of the index.
struct AlignedIndex2dRows {
    static __device__ void put(RowAddends& rows, int r, int i, float addend) {
        rows.put(r, i, addend);
    }
    static __device__ float add_to(float addend, int, int, int) { return addend; }
};
class SelectedIndex2dRows {
  public:
    __device__ void put(RowAddends&, int r, int i, float addend) { addends_[r][i] = addend; }
    __device__ float add_to(float addend, int first_column, int r, int j) const {
        return addend + of(first_column, r, j);
    }

  private:
    // Eight neighbouring columns are in at most two rows of the index, and which of them a column
    // is in depends on the thread.
    __device__ float of(int first_column, int r, int j) const {
        const int low = j / 2 * 8 / kKeyWidth, high = (j / 2 * 8 + 7) / kKeyWidth;
        if (low == high) return addends_[r][low];
        return first_column + column_of(j) < high * kKeyWidth ? addends_[r][low]
                                                              : addends_[r][high];
    }
    float addends_[2][LogitForm::kIndex2dRowsOfTile];
};
using Index2dRowAddends = Select<LogitForm::kSelectsRows, SelectedIndex2dRows, AlignedIndex2dRows>;

// Addend that grows by the same amount from key to key, beside the row's addend.
struct NoSlope {
    static __device__ void find(int, const mod::At&, float) {}
    static __device__ void multiply_columns() {}
    static __device__ float add_to(float addend, int, int) { return addend; }
};
class MultipliedSlope {
  public:
    // unit: factor from addends to logits.
    __device__ void find(int r, const mod::At& at, float unit) {
        slope_[r] = mod::slope(at) * unit;
    }
    static __device__ void multiply_columns() {}
    __device__ float add_to(float addend, int r, int j) const {
        return addend + slope_[kForm.slope_is_of_head ? 0 : r] * static_cast<float>(column_of(j));
    }

  protected:
    float slope_[2];
};
// Slopes times columns stay in registers where there is room for them.
class SlopeOfColumns : public MultipliedSlope {
  public:
    __device__ void multiply_columns() {
#pragma unroll
        for (int j = 0; j < kFragmentColumns; ++j)
            columns_[j] = slope_[0] * static_cast<float>(column_of(j));
    }
    __device__ float add_to(float addend, int, int j) const { return addend + columns_[j]; }

  private:
    float columns_[kFragmentColumns];
};
constexpr bool kKeepsColumns = kForm.slope_is_of_head &&
                               mod::ForwardSchedule::kHasRegistersForColumns && !kHasTabulated &&
                               !LogitForm::kLineIsRelative;
using Slope =
    Select<kForm.has_slope, Select<kKeepsColumns, SlopeOfColumns, MultipliedSlope>, NoSlope>;

// Addends that depend on the key alone, or on the distance alone.
struct NoTabulatedAddend {
    static __device__ float add_to(float addend, const ScoreElements&, const LogitUnits&, int,
                                   int) {
        return addend;
    }
};
struct TabulatedAddend {
    static __device__ float add_to(float addend, const ScoreElements& elements,
                                   const LogitUnits& units, int r, int j) {
        // Adding -0 leaves every float as it is; adding 0 would turn -0 into 0.
        const TabulatedTile& tile = elements.tabulated();
        const float of_key = kForm.has_key_addend ? tile.key(0, j) : -0.0f;
        const float of_distance = kForm.has_distance_addend ? tile.distance(0, r, j) : -0.0f;
        return addend + units.of_tabulated(of_key + of_distance);
    }
};
using TabulatedAddends =
    Select<kForm.has_key_addend || kForm.has_distance_addend, TabulatedAddend, NoTabulatedAddend>;

// Addends that are the same for all tiles of keys: those by columns of the 2-D key index, of which
// a tile has whole periods; less the running maximum so far where logits are relative.
struct NothingRepeats {
    static __device__ void prepare(const ScoreElements&, const LogitUnits&) {}
    static __device__ float add_to(float addend, int, int) { return addend; }
    static __device__ void lower(int, float) {}
};
// kColumns: number of a thread's columns in a period.
template <int kColumns> class Repeats {
  public:
    __device__ float add_to(float addend, int r, int j) const {
        return addend + repeated_[r][j % kColumns];
    }
    __device__ void lower(int r, float by) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
            repeated_[r][j] -= by;
    }

  protected:
    float repeated_[2][kColumns];
};
struct RunningMaximumRepeats : public Repeats<1> {
    __device__ void prepare(const ScoreElements&, const LogitUnits&) {
        repeated_[0][0] = repeated_[1][0] = 0;
    }
};
constexpr int least_common_multiple(int x, int y) {
    int multiple = x;
    while (multiple % y != 0)
        multiple += x;
    return multiple;
}
// Number of a thread's columns in a period, which is one of both eight keys and the index.
constexpr int kPeriodColumns =
    kForm.has_remainder_addend ? least_common_multiple(kKeyWidth, 8) / 4 : 1;
struct RemainderRepeats : public Repeats<kPeriodColumns> {
    __device__ void prepare(const ScoreElements& elements, const LogitUnits& units) {
#pragma unroll
        for (int j = 0; j < kPeriodColumns; ++j)
            elements.visit_column(elements.first_column() + column_of(j),
                                  [&](int r, const mod::At& at) {
                                      repeated_[r][j] = units.of_addend(mod::remainder_addend(at));
                                  });
    }
};
using RepeatedAddends = Select<kForm.has_remainder_addend, RemainderRepeats,
                               Select<LogitForm::kAreRelative && !LogitForm::kLineIsRelative,
                                      RunningMaximumRepeats, NothingRepeats>>;

#endif

} // namespace sm90
