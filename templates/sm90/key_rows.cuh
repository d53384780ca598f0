// Finds where rows of keys or values lie in memory, for threads that copy tiles of them: side by
// side, or each where mod::Layouts::Keys says.
#pragma once

#include "common/select.h"
#include "common/sequence_length.cuh"
#include "sm90/forward_layout.cuh"

namespace sm90 {

#ifdef FLEXC_COPIES_KEYS

constexpr int kKeyCopyWarps = 3; // all warps of the producer warpgroup but the producer's
constexpr int kKeyCopyThreads = 32 * kKeyCopyWarps;

// A thread that copies. At each step its warp copies four rows, with eight lanes for each.
struct KeyCopier {
    static constexpr int kLanes = 8, kRows = 32 / kLanes; // for a row; in a step
    static constexpr int kStride = kKeyCopyWarps * kRows; // from a lane's row to its next
    static constexpr int kSteps = (mod::kKeyTile + kStride - 1) / kStride;
    static_assert(mod::kKeyTile % kRows == 0); // a step's rows are all in the tile, or none

    int warp, lane;

    // Returns the row of the tile that the lane copies at a step.
    __device__ int row(int step) const { return step * kStride + kRows * warp + lane / kLanes; }
    // Returns the lane's place in a panel's row, in units of one copy.
    __device__ int chunk() const { return lane % kLanes; }
};

using RowAddress = unsigned long long;
// Returns the address of a row of a head. first: index of the tensor's first dim.
__device__ inline RowAddress address_of_row(const TensorArgument& tensor, long long first, int h_kv,
                                            long long row) {
    constexpr long long kBytes = sizeof(mod::Element);
    return reinterpret_cast<RowAddress>(tensor.data) +
           (first * tensor.stride_b + h_kv * tensor.stride_h + row * tensor.stride_s) * kBytes;
}

// Rows of a batch entry of dense tensors, or of a request of ragged ones.
class RowsInOrder {
  public:
    // tile: the number of the tile of keys.
    __device__ RowsInOrder(const AttentionArguments&, const TensorArgument& tensor,
                           const SequenceLength& length, int h_kv, int tile,
                           const KeyCopier& copier)
        : first_(address_of_row(tensor, length.entry(), h_kv,
                                length.first_key_row() + tile * mod::kKeyTile + copier.row(0))),
          step_(KeyCopier::kStride * tensor.stride_s * static_cast<int>(sizeof(mod::Element))) {}

    // Returns the address of the row that the thread copies at a step.
    __device__ RowAddress at(int step, const KeyCopier&) const { return first_ + step * step_; }

  private:
    RowAddress first_;
    long long step_;
};

// Rows that lie apart. Each lane looks up some of the warp's rows, for all of its lanes.
class ScatteredRows {
    static constexpr int kRows = KeyCopier::kSteps * KeyCopier::kRows; // rows of a warp
    static constexpr int kLookups = (kRows + 31) / 32;

  public:
    __device__ ScatteredRows(const AttentionArguments& attention, const TensorArgument& tensor,
                             const RequestLength& length, int h_kv, int tile,
                             const KeyCopier& copier) {
        const mod::Layouts::Keys keys = keys_of(attention, length);
#pragma unroll
        for (int i = 0; i < kLookups; ++i) {
            const int found = 32 * i + copier.lane;
            const int row = found / KeyCopier::kRows * KeyCopier::kStride +
                            KeyCopier::kRows * copier.warp + found % KeyCopier::kRows;
            const KeyPlace at = keys.place(min(tile * mod::kKeyTile + row, length.keys() - 1));
            rows_[i] = address_of_row(tensor, at.entry, h_kv, at.row);
        }
    }

    // Returns the address of the row that the thread copies at a step. Called by whole warps.
    __device__ RowAddress at(int step, const KeyCopier& copier) const {
        const int first = step * KeyCopier::kRows;
        return __shfl_sync(0xffffffffu, rows_[first / 32],
                           first % 32 + copier.lane / KeyCopier::kLanes);
    }

  private:
    RowAddress rows_[kLookups];
};

using KeyRows = Select<mod::Layouts::Keys::kAreInOrder, RowsInOrder, ScatteredRows>;

#endif

} // namespace sm90
