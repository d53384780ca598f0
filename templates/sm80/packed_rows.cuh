// Packed rows: the queries of all heads that share a KV head (GQA), query by query, with all heads
// of a query together. A tile with few queries then reads keys once for all of these heads.
#pragma once

#include "common/mask.cuh"
#include "sm80/forward_tiles.cuh"

namespace sm80 {

// The query and head of one packed row.
struct PackedRow {
    int query, h;

    __device__ PackedRow(int row, int h_kv, int group)
        : query(flexc_quotient(row, group)), h(h_kv * group + row - query * group) {}
};

// One of a thread's rows, with all that the program computes for it. Rows past the end repeat the
// last one.
struct ThreadRow : PackedRow {
    HeadPlace place;
    int q; // as the program sees it
    mod::Row value;

    __device__ ThreadRow(const AttentionArguments& attention, const mod::Arguments& arguments,
                         const SequenceLength& length, int row, int h_kv, int group)
        : PackedRow(row, h_kv, group), place(attention, arguments, length.b(), h, h_kv),
          q(length.q_idx(query)),
          value(mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q)) {
    }
};

// Replaces Rows for a single warp with 16 packed rows.
struct PackedRows {
    static_assert(mod::kQueryTile == 16 && mod::kWarps == 1 && kRows == 2);
    const ThreadRow row[kRows];

    __device__ PackedRows(const AttentionArguments& attention, const mod::Arguments& arguments,
                          const SequenceLength& length, int first_row, int last_row, int h_kv,
                          int group)
        : row{{attention, arguments, length, min(first_row + lane_index() / 4, last_row), h_kv,
               group},
              {attention, arguments, length, min(first_row + 8 + lane_index() / 4, last_row), h_kv,
               group}} {}

    // Keys that some row of the tile may see.
    __device__ Positions keys() const {
        Positions all{kAnyDistance, -1};
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const Positions own = row[i].place.keys_of(row[i].query, row[i].query);
            if (own.first > own.last) continue;
            all.first = min(all.first, own.first);
            all.last = max(all.last, own.last);
        }
        return {__reduce_min_sync(0xffffffffu, all.first),
                __reduce_max_sync(0xffffffffu, all.last)};
    }

    // Whether nothing of these keys is hidden from any row.
    __device__ bool all_see(int first_kv, int last_kv) const {
        bool all = true;
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            all &=
                Mask::shows_all(row[i].place, false, row[i].query, row[i].query, first_kv, last_kv);
        return __all_sync(0xffffffffu, all);
    }

    // Same interface as Rows::visit_column().
    template <typename Visit>
    __device__ void visit_column(int column, const Surroundings& around, int first_kv,
                                 Visit visit) const {
        const auto& [attention, arguments, unused, length] = around;
        const int position = position_of(column, first_kv);
        const bool inside = position < length.keys();
        const int kv = length.kv_idx(position);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
            const HeadPlace& place = row[i].place;
            const mod::Column of_column = mod::at_column(arguments, place.launch, place.head,
                                                         place.b, place.h, place.h_kv, kv);
            const mod::At at{arguments, place.launch, place.head, row[i].value, of_column,
                             place.b,   place.h,      place.h_kv, row[i].q,     kv};
            visit(i, at, inside);
        }
    }
};

} // namespace sm80
