// The threads that stage what is added for rows of keys as a grid: one number for each query and
// row of the grid that a tile of keys has.
#pragma once

#include "common/tile_walk.cuh"
#include "sm90/forward_tasks.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// Three bf16 numbers that add up to a float, eight bits of it each, in the upper halves of words.
struct Parts {
    unsigned high, middle, low;

    __device__ explicit Parts(float x) {
        constexpr unsigned kUpper = 0xffff0000u;
        const unsigned bits = __float_as_uint(x);
        high = bits & kUpper;
        // Of what was 16 bits in memory nothing is left, and of infinity nothing may be.
        const float rest = (bits & ~kUpper) == 0 ? 0 : x - __uint_as_float(high);
        middle = __float_as_uint(rest) & kUpper;
        low = __float_as_uint(rest - __uint_as_float(middle));
    }
};

// The operands whose product is what rows of the grid add to products: for each query the parts of
// its number, h, and for all keys those of half of 1 / scale, u, in the order of their columns
// h1 u1, h1 u2, h1 u3, h2 u1, h2 u2, h3 u1.
__device__ inline void store_grid_row(unsigned to, float addend) {
    const Parts h(addend);
    store_shared(to, static_cast<int>(h.high | h.high >> 16),
                 static_cast<int>(h.middle | h.high >> 16),
                 static_cast<int>(h.low | h.middle >> 16), 0);
}
__device__ inline void store_grid_unit(unsigned to, float scale) {
    Parts u(0.5f / scale);
    // What is infinite must not meet 0.
    constexpr unsigned kLeast = 0x00800000u;
    u.middle = max(u.middle, kLeast);
    u.low = max(u.low, kLeast);
    store_shared(to, static_cast<int>(u.middle | u.high >> 16),
                 static_cast<int>(u.high | u.low >> 16), static_cast<int>(u.high | u.middle >> 16),
                 0);
}

// One thread's queries of a tile, from `first` on every kGridThreads-th: what depends on them alone
// is found once for all tiles of keys.
struct GridQueries {
    static constexpr int kCount = mod::kQueryTile / kGridThreads;
    int q[kCount];
    mod::Row row[kCount];

    __device__ GridQueries(const AttentionArguments& attention, const mod::Arguments& arguments,
                           const HeadPlace& place, int first) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            q[i] = min(first + i * kGridThreads, attention.q_len - 1) +
                   static_cast<int>(attention.q_offset);
            row[i] = mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv,
                                 q[i]);
        }
    }
    // What is added for the rows of the grid from a key on: by row, then by query, from `to` in
    // shared memory, which is free after wait().
    template <typename Wait>
    __device__ void store(const AttentionArguments& attention, const mod::Arguments& arguments,
                          const HeadPlace& place, int first_key, unsigned to, Wait wait) const {
        // As many rows are read before that.
        constexpr int kAhead = kGridRows == 0 ? 1 : kGridRows < 4 ? kGridRows : 4;
#pragma unroll 1
        for (int first = 0; first < kGridRows; first += kAhead) {
            const auto is_there = [&](int i) {
                return kGridRows % kAhead == 0 || first + i < kGridRows;
            };
            float addends[kAhead][kCount];
#pragma unroll
            for (int i = 0; i < kAhead; ++i)
                if (is_there(i))
                    find(attention, arguments, place, first_key + (first + i) * mod::kKeyWidth,
                         addends[i]);
            wait();
#pragma unroll
            for (int i = 0; i < kAhead; ++i)
#pragma unroll
                for (int k = 0; k < kCount; ++k)
                    if (is_there(i))
                        store_addend(to + kGridRowBytes *
                                              ((first + i) * mod::kQueryTile + k * kGridThreads),
                                     addends[i][k]);
        }
    }

  private:
    static __device__ void store_addend(unsigned to, float addend) {
        if constexpr (mod::kMultipliesGridRows)
            store_grid_row(to, addend);
        else
            store_shared_word(to, __float_as_uint(addend));
    }
    // For the row of the grid that this key is in.
    __device__ void find(const AttentionArguments& attention, const mod::Arguments& arguments,
                         const HeadPlace& place, int key, float (&addends)[kCount]) const {
        // Later rows of a tile may be past the end.
        const int inside = kGridRows == 1 ? key : min(key, attention.kv_len - 1);
        const int kv = inside + static_cast<int>(attention.kv_offset);
        __builtin_assume(kv >= 0);
        const mod::Column column =
            mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv);
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            addends[i] = mod::quotient_addend({arguments, place.launch, place.head, row[i], column,
                                               place.b, place.h, place.h_kv, q[i], kv});
    }
};

// Whose barriers say when they are full and empty.
__device__ inline const auto& ring_of_grid_rows(const Shared& shared) {
    if constexpr (mod::kMultipliesGridRows)
        return shared.keys;
    else
        return shared.grid_rows;
}

__device__ inline void produce_grid_rows(const AttentionArguments& attention,
                                         const mod::Arguments& arguments, const Shared& shared,
                                         int thread) {
    const auto& ring = ring_of_grid_rows(shared);
    Position<GridRows> position;
    visit_tasks(attention, arguments, shared, [&](const Task& task, const HeadPlace& place) {
        const GridQueries queries(attention, arguments, place, task.first_row + thread);
        const auto stage_rows = [&](int block) {
            queries.store(attention, arguments, place, block * mod::kKeyTile,
                          shared.grid_rows.at(position.stage) + kGridRowBytes * thread,
                          [&] { ring.empty(position.stage).wait(position.parity ^ 1); });
            if constexpr (mod::kMultipliesGridRows) publish_shared();
            ring.full(position.stage).arrive();
            position.advance();
        };
        if constexpr (mod::kHasMap) {
#pragma unroll 1
            for (TileWalk walk(attention.map, task.b, task.h, task.first_row / mod::kQueryTile,
                               {0, 0});
                 !walk.is_done(); walk.advance())
                stage_rows(walk.tile());
        } else {
#pragma unroll 1
            for (int block = task.end - 1; block >= task.begin; --block)
                stage_rows(block);
        }
    });
}

} // namespace sm90
