// Computes P and dS from a tile of products, element by element, for every backward kernel.
#pragma once

#include "common/mask.cuh"
#include "common/math.cuh"
#include "sm80/backward_registers.cuh"
#include "sm80/line_sums.cuh"
#include "sm80/term_tile.cuh"

namespace sm80 {

// Returns an element whose indices are hidden from the compiler: see found_again().
__device__ inline mod::At element_found_again(const Surroundings& around, const ScoreRow& row,
                                              const ScoreColumn& column) {
    const auto& [attention, arguments, place, length] = around;
    return {arguments,
            place.launch,
            place.head,
            row.value,
            column.value,
            found_again(place.b),
            found_again(place.h),
            place.h_kv,
            found_again(row.q),
            column.kv};
}

// Replaces product (q k') by the weight, P, and dp (d_out v') by the gradient with respect to the
// score before the mod, dS. Hidden elements become zero by selection, so that nothing that a mod
// returns there matters. add(joint, d_modified, visible) adds gradients of what the mod reads.
template <typename Add>
__device__ inline void differentiate(float& product, float& dp, bool visible, const mod::At& at,
                                     float scale, const ScoreRow& row, Add add) {
    const mod::Joint joint = mod::joint(at, product * scale);
    visible = visible && !(mod::kHasScoreMod && joint.score == negative_infinity());
    const float p = exp2_fast((joint.score - row.reference_score) * kLog2E - row.lse_log2);
    const float d_modified = p * (dp - row.delta);
    add(joint, d_modified, visible);
    product = visible ? p : 0;
    dp = visible ? d_modified * joint.d_score : 0;
}

// Returns whether an element is visible. The classes below say it of all elements of a warp's
// rectangle.
__device__ inline bool is_visible(const Surroundings& around, const ScoreRow& row,
                                  const ScoreColumn& column) {
    return column.inside && row.inside && mod::visible(element_at(around, row, column));
}
struct AllAreVisible {
    static constexpr bool kAll = true;
    __device__ AllAreVisible(const Surroundings&, const ScoreTile&) {}
    __device__ bool operator()(const Surroundings&, int, int, const ScoreRow&,
                               const ScoreColumn&) const {
        return true;
    }
};
struct EachIsCompared {
    static constexpr bool kAll = false;
    __device__ EachIsCompared(const Surroundings&, const ScoreTile&) {}
    __device__ bool operator()(const Surroundings& around, int, int, const ScoreRow& row,
                               const ScoreColumn& column) const {
        return is_visible(around, row, column);
    }
};
// Returns whether everything of this warp's rectangle of the tile is visible.
template <typename Scores>
__device__ inline bool shows_all(const Surroundings& around, const ScoreTile& tile) {
    const int top = tile.first_q + Scores::first_row(),
              bottom = top + 16 * Scores::kRowFragments - 1;
    const int left = tile.first_kv + Scores::first_column(), right = left + 16 * Scores::kUnits - 1;
    return Mask::shows_all(around.place, tile.is_full, top, bottom, left, right) &&
           bottom < around.length.queries() && right < around.length.keys();
}

// Has a bit for each of a thread's columns, for each of its rows. Evaluates one column at a time: a
// mask that is evaluated for all of them at once fills the registers.
template <typename Scores> struct BitsOfVisible {
    static constexpr bool kAll = false;
    static constexpr int kColumns = 2 * Scores::kColumns;
    static_assert(kColumns <= 32);
    unsigned columns[Scores::kRows] = {};

    __device__ BitsOfVisible(const Surroundings& around, const ScoreTile& tile) {
        if (kIsWrittenOnce && shows_all<Scores>(around, tile)) {
#pragma unroll
            for (int row = 0; row < Scores::kRows; ++row)
                columns[row] = ~0u;
            return;
        }
        ScoreRow rows[Scores::kRows];
#pragma unroll
        for (int i = 0; i < Scores::kRows; ++i)
            rows[i] = read_row(around, tile, Scores::row(i));
#pragma unroll 1
        for (int i = 0; i < kColumns; ++i) {
            const ScoreColumn column =
                read_column<false>(around, tile, Scores::column(i / 2) + i % 2);
#pragma unroll
            for (int row = 0; row < Scores::kRows; ++row)
                columns[row] |= static_cast<unsigned>(is_visible(around, rows[row], column)) << i;
        }
    }
    __device__ bool operator()(const Surroundings&, int row, int column, const ScoreRow&,
                               const ScoreColumn&) const {
        return (columns[row] >> column & 1) != 0;
    }
};

// The order in which a warp's elements are visited: column after column if a mod has values of
// columns, or gradients of them, which are kept only for their column; else row after row.
// visit(row, column, visible, values of the row, values of the column) is called for each element,
// end_column(values) after the last one of a column, end_row(row, values) after that of a row.
struct ColumnAfterColumn {
    template <typename Scores>
    using Visible =
        Select<Mask::kIsComparison || !kIsWrittenOnce, EachIsCompared, BitsOfVisible<Scores>>;
    template <typename Scores, typename Seen, typename Visit, typename EndRow, typename EndColumn>
    static __device__ void visit(const Surroundings& around, const ScoreTile& tile,
                                 const Seen& seen, Visit visit, EndRow end_row,
                                 EndColumn end_column) {
        ScoreRow rows[Scores::kRows];
#pragma unroll
        for (int row = 0; row < Scores::kRows; ++row)
            rows[row] = read_row(around, tile, Scores::row(row));
#pragma unroll
        for (int i = 0; i < 2 * Scores::kColumns; ++i) {
            const ScoreColumn column =
                read_column<Seen::kAll>(around, tile, Scores::column(i / 2) + i % 2);
#pragma unroll
            for (int row = 0; row < Scores::kRows; ++row)
                visit(row, i, seen(around, row, i, rows[row], column), rows[row], column);
            end_column(column);
        }
#pragma unroll
        for (int row = 0; row < Scores::kRows; ++row)
            end_row(row, rows[row]);
    }
};
struct RowAfterRow {
    template <typename Scores>
    using Visible = Select<Mask::kIsComparison, EachIsCompared, BitsOfVisible<Scores>>;
    template <typename Scores, typename Seen, typename Visit, typename EndRow, typename EndColumn>
    static __device__ void visit(const Surroundings& around, const ScoreTile& tile,
                                 const Seen& seen, Visit visit, EndRow end_row, EndColumn) {
#pragma unroll
        for (int i = 0; i < Scores::kRows; ++i) {
            const ScoreRow row = read_row(around, tile, Scores::row(i));
#pragma unroll
            for (int column = 0; column < 2 * Scores::kColumns; ++column) {
                const ScoreColumn values =
                    read_column<Seen::kAll>(around, tile, Scores::column(column / 2) + column % 2);
                visit(i, column, seen(around, i, column, row, values), row, values);
            }
            end_row(i, row);
        }
    }
};
using ElementOrder = Select<(kHasColumnValues || mod::ColumnGradients::kCount > 0),
                            ColumnAfterColumn, RowAfterRow>;

// What elements give to gradients that share one partial derivative; nothing if there are none. It
// stays 0 where an element is hidden, whose derivative may be infinite.
template <typename Scores, int kPartial, bool kExists = (kPartial >= 0)> class PartialScores {
  public:
    __device__ void add(int, int, const mod::Joint&, float) {}
    template <typename Use> __device__ void use(Use) {}
};
template <typename Scores, int kPartial> class PartialScores<Scores, kPartial, true> {
  public:
    __device__ PartialScores() { values_.clear(); }
    __device__ void add(int row, int column, const mod::Joint& joint, float d_modified) {
        values_.at(row, column / 2, column % 2) = joint.partial[kPartial] * d_modified;
    }
    template <typename Use> __device__ void use(Use use_values) { use_values(values_); }

  private:
    Scores values_;
};
template <typename Scores>
using WeightedScores = PartialScores<Scores, mod::TableGradients::kWeightedPartial>;
template <typename Scores>
using AddedScores = PartialScores<Scores, mod::AddedGradients::kPartial>;

// Adds to gradients in memory once all elements are differentiated.
template <typename Scores>
__device__ inline void add_to_memory(AddedScores<Scores>& added, const Surroundings& around,
                                     const ScoreTile& tile) {
    added.use([&](auto& values) {
        ElementOrder::visit<Scores>(
            around, tile, AllAreVisible(around, tile),
            [&](int row, int column, bool, const ScoreRow& row_values,
                const ScoreColumn& column_values) {
                mod::AddedGradients::add(element_found_again(around, row_values, column_values),
                                         values.at(row, column / 2, column % 2));
            },
            [](int, const ScoreRow&) {}, [](const ScoreColumn&) {});
    });
}

// What elements give to gradients that are summed when P and dS are stored.
template <typename Scores> struct LaterGradients {
    WeightedScores<Scores> weighted;
    TermElements<Scores> terms;
};

template <typename Seen, typename Scores>
__device__ void differentiate_all(Scores& products, Scores& dp, const Surroundings& around,
                                  const ScoreTile& tile, mod::GradientSums& sums,
                                  LaterGradients<Scores>& later) {
    RowSum row_sums[Scores::kRows];
    ColumnSum column_sum;
    AddedScores<Scores> added;
    ElementOrder::visit<Scores>(
        around, tile, Seen(around, tile),
        [&](int row, int column, bool visible, const ScoreRow& row_values,
            const ScoreColumn& column_values) {
            const mod::At at = element_found_again(around, row_values, column_values);
            differentiate(products.at(row, column / 2, column % 2),
                          dp.at(row, column / 2, column % 2), visible, at, around.attention.scale,
                          row_values,
                          [&](const mod::Joint& joint, float d_modified, bool is_added) {
                              if (is_added) {
                                  mod::sum_gradients(at, joint, d_modified, sums);
                                  row_sums[row].add(at, joint, d_modified);
                                  column_sum.add(at, joint, d_modified);
                                  later.weighted.add(row, column, joint, d_modified);
                                  added.add(row, column, joint, d_modified);
                                  mod::add_gradients(at, joint, d_modified);
                              }
                              later.terms.keep(row, column, joint, is_added ? d_modified : 0);
                          });
        },
        [&](int row, const ScoreRow& values) {
            row_sums[row].flush(element_found_again(around, values, ScoreColumn{}), values.inside);
        },
        [&](const ScoreColumn& values) {
            column_sum.flush(element_found_again(around, ScoreRow{}, values), values.inside);
            column_sum = {};
        });
    add_to_memory<Scores>(added, around, tile);
}

// Picks the form that this warp's rectangle of the tile needs. If much is read for each element,
// there is only one.
template <typename Scores>
__device__ inline void differentiate_tile(Scores& products, Scores& dp, const Surroundings& around,
                                          ScoreTile tile, mod::GradientSums& sums,
                                          LaterGradients<Scores>& later) {
    tile.first_kv = computed_again(tile.first_kv);
    if constexpr (!kIsWrittenOnce)
        if (shows_all<Scores>(around, tile))
            return differentiate_all<AllAreVisible>(products, dp, around, tile, sums, later);
    differentiate_all<typename ElementOrder::Visible<Scores>>(products, dp, around, tile, sums,
                                                              later);
}

} // namespace sm80
