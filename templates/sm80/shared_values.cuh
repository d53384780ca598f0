// mod::shared_value of the elements of a tile, which a block keeps for all batch entries of a head.
#pragma once

#include "common/select.h"
#include "sm80/forward_tiles.cuh"

namespace sm80 {

struct NoSharedValues {
    static constexpr int kBytes = 0;
    __device__ explicit NoSharedValues(unsigned) {}
    __device__ void find(const Surroundings&, const Rows&) {}
    template <int kCount> __device__ void load(float (&)[kCount], int) const {}
};

// Each thread stores the values of its own elements, column after column.
class ValuesOfThreads {
  public:
    static constexpr int kBytes = tile_float_bytes(mod::kQueryTile, mod::kKeyTile);
    static_assert(kRows == 2 || kRows == 4, "one load");

    __device__ explicit ValuesOfThreads(unsigned base)
        : own_(base + static_cast<int>(threadIdx.x) * kColumnBytes) {}

    // Computes the values of the head, unless the batch entry before had the same head.
    __device__ void find(const Surroundings& around, const Rows& rows) {
        if (around.place.h == head_) return;
        head_ = around.place.h;
#pragma unroll 1
        for (int column = 0; column < 2 * kKeyColumns; ++column)
            rows.visit_column(column, around, 0, [&](int row, const mod::At& at, bool) {
                store_shared(place(column) + 4 * row, mod::shared_value(at));
            });
    }
    template <int kCount> __device__ void load(float (&values)[kCount], int column) const {
        if constexpr (kCount == 4)
            load_shared(values, place(column));
        else
            load_shared(values[0], values[1], place(column));
    }

  private:
    static constexpr int kColumnBytes = 4 * kRows;
    __device__ unsigned place(int column) const { return own_ + column * kThreads * kColumnBytes; }

    unsigned own_;
    int head_ = -1;
};
using SharedValues = Select<mod::kHasSharedValue, ValuesOfThreads, NoSharedValues>;

// Adapts Rows: sets `shared_value` of each element that is visited.
struct RowsWithValues {
    const Rows& rows;
    const SharedValues& values;

    template <typename Visit>
    __device__ void visit_column(int column, const Surroundings& around, int first_kv,
                                 Visit visit) const {
        float own[kRows] = {};
        values.load(own, column);
        rows.visit_column(column, around, first_kv, [&](int row, const mod::At& at, bool inside) {
            mod::At element = at;
            element.shared_value = own[row];
            visit(row, element, inside);
        });
    }
};

} // namespace sm80
