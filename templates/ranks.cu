// Kernels for what ranks do to tensors between attention kernels: rows are moved, partial results
// merged, and sums of ranks added. They do not depend on a program.
#include "ranks/launch.h"
#include "ranks/move_units.cuh"
#include "ranks/partial_sums.h"
#include "ranks/rank_sums.h"
#include "ranks/sinks.h"

using namespace ranks;

namespace {

__device__ long long first_element() {
    return static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ long long all_threads() { return static_cast<long long>(gridDim.x) * kThreads; }

// Calls visit(row) for each of the warp's rows.
template <typename Visit> __device__ void each_row(long long count, Visit visit) {
    for (long long row = first_element() / 32; row < count; row += all_threads() / 32)
        visit(row);
}
__device__ int lane() { return static_cast<int>(threadIdx.x % 32); }

template <typename Index> __device__ void move_all(const Move& move) {
    const auto units = static_cast<Index>(move.units);
    for (auto i = static_cast<Index>(first_element()); i < units;
         i += static_cast<Index>(all_threads())) {
        Index rest = i;
        const char* from = move.from;
        char* to = move.to;
#pragma unroll 1
        for (int dim = move.rank - 1; dim >= 0; --dim) {
            const auto extent = static_cast<Index>(move.extents[dim]);
            const Index more = dim == 0 ? 0 : rest / extent;
            const auto at = static_cast<long long>(rest - more * extent);
            from += at * move.from_strides[dim];
            to += at * move.to_strides[dim];
            rest = more;
        }
        move_unit(move, from, to);
    }
}

template <typename T> __device__ void store(char* row, long long stride, int column, float value) {
    *reinterpret_cast<T*>(row + column * stride) = flexc_from_float<T>(value);
}

} // namespace

// A row of blocks for each move.
extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_move(const __grid_constant__ Moves moves) {
    const Move& move = moves.all[blockIdx.y];
    // 64-bit divisions take several times as long.
    if (move.units < 1ll << 31)
        move_all<unsigned>(move);
    else
        move_all<unsigned long long>(move);
}

// Launched with a warp for each row of the part.
extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_merge(const __grid_constant__ PartialSums sums, const __grid_constant__ Part part) {
    each_row(part.count, [&](long long row) {
        const long long place = part.place(row, sums);
        if (part.o == nullptr) {
            if (lane() == 0) sums.weights[place] = sums.largest[place] == no_lse() ? 0 : 1;
            return;
        }
        const float lse = part.lse[row];
        if (lse == no_lse()) return;
        const bool is_first = sums.weights[place] == 0;
        const Merged merged = merge(sums.largest[place], sums.weights[place], lse);
        __syncwarp();
        float* const to = sums.outputs + place * sums.columns;
        const float* const from = part.o + row * sums.columns;
        for (int column = lane(); column < sums.columns; column += 32)
            to[column] = is_first ? from[column]
                                  : to[column] * merged.of_sum + merged.of_part * from[column];
        if (lane() != 0) return;
        sums.largest[place] = merged.largest;
        sums.weights[place] = merged.weight;
    });
}

// Launched with a warp for each finished row of all heads.
extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_finish(const __grid_constant__ FinishedRows finished) {
    const PartialSums& sums = finished.sums;
    each_row(finished.batch * sums.heads * finished.rows, [&](long long i) {
        const long long row = i % finished.rows, head = i / finished.rows;
        const long long b = head / sums.heads, h = head % sums.heads;
        const long long place = head * sums.rows + finished.first_row + row;
        const Merged merged =
            merge_last(sums.largest[place], sums.weights[place],
                       finished.part_lse == nullptr ? nullptr : finished.part_lse + i);
        const bool is_empty = merged.weight == 0;
        const double lse = is_empty ? no_lse() : log_of(merged.largest, merged.weight);
        const float* const sink = finished.sinks == nullptr ? nullptr : finished.sinks + place;
        const double by = is_empty ? 1 : divisor(lse, merged.weight, sink);
        const float* const outputs = sums.outputs + place * sums.columns;
        const float* const part =
            finished.part_o == nullptr ? outputs : finished.part_o + i * sums.columns;
        char* const to = finished.o + b * finished.o_strides[0] + h * finished.o_strides[1] +
                         row * finished.o_strides[2];
        for (int column = lane(); column < sums.columns; column += 32) {
            const float sum = is_empty ? 0 : merged_output(merged, outputs + column, part + column);
            const auto value = static_cast<float>(sum / by);
            const long long stride = finished.o_strides[3];
            switch (finished.o_type) {
            case FinishedRows::kF16: store<flexc_f16>(to, stride, column, value); break;
            case FinishedRows::kBf16: store<flexc_bf16>(to, stride, column, value); break;
            case FinishedRows::kF32: store<float>(to, stride, column, value); break;
            }
        }
        if (finished.lse == nullptr || lane() != 0) return;
        *reinterpret_cast<float*>(finished.lse + b * finished.lse_strides[0] +
                                  h * finished.lse_strides[1] + row * finished.lse_strides[2]) =
            static_cast<float>(lse);
    });
}

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_add_sinks(const __grid_constant__ SinkRows rows) {
    for (long long row = first_element(); row < rows.count; row += all_threads())
        add_sink(rows.sinks[row], rows.lse[row],
                 rows.d_lse == nullptr ? nullptr : rows.d_lse + row);
}

// Launched with a warp for each row.
extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_sink_gradients(const __grid_constant__ SinkGradients sinks) {
    each_row(sinks.count, [&](long long row) {
        double product = 0;
        for (int column = lane(); column < sinks.columns; column += 32) {
            const long long at = row * sinks.columns + column;
            product += static_cast<double>(sinks.o[at]) * static_cast<double>(sinks.d_out[at]);
        }
        for (int distance = 16; distance > 0; distance /= 2)
            product += __shfl_xor_sync(~0u, product, distance);
        if (lane() == 0)
            sinks.gradients[row] = sink_gradient(sinks.sinks[row], sinks.lse[row], product);
    });
}

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_sum_ranks(const __grid_constant__ RankSums sums) {
    for (long long i = first_element(); i < sums.count; i += all_threads()) {
        double sum = 0;
        for (int rank = 0; rank < sums.ranks; ++rank)
            sum += static_cast<double>(sums.parts[rank * sums.count + i]);
        sums.to[i] = static_cast<float>(sum * static_cast<double>(sums.factor));
    }
}
