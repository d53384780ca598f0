// The row statistics of a block that has a whole sequence: it computes delta from its tiles of o
// and d_out, and finds the references of rows with a large lse itself. If the program has a sink,
// earlier kernels have computed delta and the references.
#pragma once

#include "common/select.h"
#include "sm80/backward_tiles.cuh"
#include "sm80/large_rows.cuh"
#include "sm80/row_products.cuh"
#include "sm80/workspace.cuh"

namespace sm80 {

// kRowVector elements of a row of a tile; zeros where it has no such columns.
template <typename T>
__device__ inline void load_vector(float (&x)[kRowVector], T tile, int row, int column) {
    using E = typename T::Element;
    constexpr int kWords = kRowVector * static_cast<int>(sizeof(E)) / 4;
    float words[kWords] = {};
    if (column < T::kPaddedColumns) {
#pragma unroll
        for (int i = 0; i < kWords; i += 4)
            load_shared(reinterpret_cast<float(&)[4]>(words[i]), tile.at(row, column) + 4 * i);
    }
#pragma unroll
    for (int i = 0; i < kRowVector; ++i) {
        if constexpr (sizeof(E) == 4) {
            x[i] = words[i];
        } else {
            const unsigned pair = __float_as_uint(words[i / 2]);
            x[i] = i % 2 == 0 ? flexc_first(E{}, pair) : flexc_second(E{}, pair);
        }
    }
}

// Shared memory with the statistics of each query: its reference score, the log-sum-exp relative to
// it and delta, as ScoreRow has them.
class SharedRowStatistics {
  public:
    __device__ explicit SharedRowStatistics(unsigned base) : base_(base) {}

    __device__ unsigned reference(int row) const { return base_ + kSharedStatisticBytes * row; }
    __device__ unsigned delta(int row) const { return reference(row) + 8; }
    __device__ void store_reference(int row, float reference, float lse_log2) const {
        store_shared(this->reference(row), reference, lse_log2);
    }
    __device__ void load(float (&statistics)[4], int row) const {
        load_shared(statistics, reference(row));
    }

  private:
    unsigned base_;
};

// Returns the reference score, given a RowStatistic.
__device__ inline float reference_score(const KernelArguments& attention, float reference) {
    return reference * (mod::kHasScoreMod ? 1 : attention.scale);
}

// Stores the references of those of the warp's 16 rows that are set in `large`. Not inlined, so
// that it does not take registers from the main loop: few sequences need it.
__device__ __noinline__ void store_references(const KernelArguments& attention,
                                              const mod::Arguments& arguments,
                                              SharedRowStatistics statistics, int b, int h,
                                              int first_row, unsigned large) {
    LargeRows<1>(attention, arguments, b * attention.heads + h, first_row)
        .find([&](int row, float reference, float lse_log2) {
            if (large >> (row - first_row) & 1)
                statistics.store_reference(row, reference_score(attention, reference),
                                           row_lse_log2(lse_log2, true));
        });
}

// statistics, output: addresses in shared memory, of the statistics, and of a tile of o whose
// memory is free until find() has ended.
class StatisticsFromTiles {
  public:
    __device__ StatisticsFromTiles(const KernelArguments& attention,
                                   const mod::Arguments& arguments, const SequenceLength& length,
                                   int h, SharedRowStatistics statistics, unsigned output)
        : attention_(attention), arguments_(arguments), length_(length), h_(h),
          statistics_(statistics), output_{output},
          in_tile_(sizeof(Element) == 4 || !(attention.o_flags & kOutputF32)) {}

    // Starts the copies; they are complete with the block's other copies.
    __device__ void load() const {
        const Plane<float> lse = query_plane<float>(attention_.lse, length_, h_);
#pragma unroll 1
        for (int i = threadIdx.x; i < mod::kQueryTile; i += kThreads)
            copy_async<4>(statistics_.reference(i), lse.at(i, 0), i < length_.queries());
        if (!in_tile_) return;
        load_tile<kThreads>(output_, query_plane<Element>(attention_.o, length_, h_), 0,
                            length_.queries());
        clear_padding<kThreads>(output_);
    }

    // Computes the statistics of all rows. Ends with a barrier of the block.
    __device__ void find(DOutTile d_out) const {
        if (in_tile_) {
#pragma unroll
            for (int i = first_row(); i < mod::kQueryTile; i += kRowStep)
                store_delta(i, product(d_out, i));
        } else {
#pragma unroll 1
            for (int i = first_row(); i < mod::kQueryTile; i += kRowStep)
                store_delta(i, row_product(attention_, length_, h_, row_of(i)));
        }
        bool is_large = false;
        static_assert(kThreads >= mod::kQueryTile);
        if (const int row = static_cast<int>(threadIdx.x); row < mod::kQueryTile) {
            const float lse = load_shared_float(statistics_.reference(row));
            is_large = is_large_lse(lse);
            // Nothing is visible in the row: an infinite lse makes every P zero.
            statistics_.store_reference(row, lse == negative_infinity() ? -lse : lse, 0);
        }
        if (__syncthreads_or(is_large)) find_references();
    }

  private:
    using OutputTile = Tile<Element, mod::kQueryTile, mod::kHeadDimV>;
    static constexpr int kRowStep = kThreads / kRowLanes;

    static __device__ int first_row() { return static_cast<int>(threadIdx.x) / kRowLanes; }
    // Rows past the end repeat the last one.
    __device__ int row_of(int i) const { return min(i, length_.queries() - 1); }
    __device__ void store_delta(int i, float product) const {
        if (threadIdx.x % kRowLanes != 0) return;
        if (attention_.d_lse.data) product -= d_lse_of(attention_, length_, h_, row_of(i));
        store_shared(statistics_.delta(i), product);
    }

    __device__ float product(DOutTile d_out, int row) const {
        const int column = static_cast<int>(threadIdx.x) % kRowLanes * kRowVector;
        float x[kRowVector], y[kRowVector];
        load_vector(x, output_, row, column);
        load_vector(y, d_out, row, column);
        return sum_of_lanes(dot(x, y));
    }

    // Finds the references of rows with a large lse, each warp those of its own 16 rows.
    __device__ void find_references() const {
        static_assert(16 * mod::kWarps == mod::kQueryTile);
        const int first_row = static_cast<int>(threadIdx.x) / 32 * 16;
        const unsigned large = __ballot_sync(
            0xffffffffu,
            is_large_lse(load_shared_float(statistics_.reference(first_row + lane_index() % 16))));
        if (large != 0)
            store_references(attention_, arguments_, statistics_, length_.b(), h_, first_row,
                             large);
        __syncthreads();
    }

    const KernelArguments& attention_;
    const mod::Arguments& arguments_;
    const SequenceLength length_;
    const int h_;
    const SharedRowStatistics statistics_;
    const OutputTile output_;
    const bool in_tile_;
};
class StatisticsFromMemory {
  public:
    __device__ StatisticsFromMemory(const KernelArguments& attention, const mod::Arguments&,
                                    const SequenceLength& length, int h,
                                    SharedRowStatistics statistics, unsigned)
        : attention_(attention), length_(length), h_(h), statistics_(statistics) {}

    __device__ void load() const {
        const RowStatistics statistics(attention_, length_, h_);
        const float* const delta = delta_of_head(attention_, length_, h_);
#pragma unroll 1
        for (int i = threadIdx.x; i < mod::kQueryTile; i += kThreads) {
            const int row = min(i, length_.queries() - 1); // those past the end repeat the last
            statistics_.store_reference(
                i, reference_score(attention_, statistics.of(row, kRowReference)),
                statistics.of(row, kRowLseLog2));
            store_shared(statistics_.delta(i), delta[row]);
        }
    }
    __device__ void find(DOutTile) const {}

  private:
    const KernelArguments& attention_;
    const SequenceLength length_;
    const int h_;
    const SharedRowStatistics statistics_;
};
using OwnRowStatistics = Select<mod::Sink::kExists, StatisticsFromMemory, StatisticsFromTiles>;

} // namespace sm80
