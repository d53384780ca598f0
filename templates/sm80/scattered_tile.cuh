// Loads tiles of keys that are not in order, as in a paged KV cache: mod::Layouts::Keys gives the
// place of each row.
#pragma once

#include "common/sequence_length.cuh"
#include "sm80/tile.cuh"

namespace sm80 {

// Loads keys of one request and one head; has the interface of TileSource.
template <int kThreads, typename T> class ScatteredTileSource {
    using E = typename T::Element;
    static constexpr int kBytes = kCopyBytes<E, T::kColumns>;
    static constexpr int kPieces =
        kBytes == 0 ? 0 : T::kColumns * static_cast<int>(sizeof(E)) / kBytes; // pieces of a row
    static constexpr bool kCanCopy = kPieces > 0;
    // Lanes that share a row, so that each load covers whole sectors of memory and a thread looks
    // up few pages.
    static constexpr int kLanes = kPieces % 4 == 0 ? 4 : kPieces % 2 == 0 ? 2 : 1;

  public:
    __device__ ScatteredTileSource(const AttentionArguments& attention,
                                   const TensorArgument& tensor, const SequenceLength& length,
                                   int h_kv, int first_key)
        : rows_(tensor, 0, h_kv, 0), stride_entry_(tensor.stride_b),
          keys_(keys_of(attention, length)), first_key_(first_key),
          aligned_(rows_.aligned_to(kBytes) &&
                   (stride_entry_ * static_cast<long long>(sizeof(E)) & (kBytes - 1)) == 0) {}

    __device__ void advance(int rows) { first_key_ += rows; }

    // Starts to load a tile. Rows from rows_left on become zeros.
    __device__ void load(T tile, int rows_left) const {
        if constexpr (kCanCopy) {
            if (aligned_) {
                copy_pieces(tile, rows_left);
                return;
            }
        }
        load_elements<kThreads>(tile, rows_left, rows_.stride_d,
                                [&](int row) { return row_of(row); });
    }

  private:
    __device__ const E* row_of(int row) const {
        const KeyPlace at = keys_.place(first_key_ + row);
        return rows_.data + at.entry * stride_entry_ + at.row * rows_.stride_s;
    }
    __device__ void copy_pieces(T tile, int rows_left) const {
        constexpr int kRowStep = kThreads / kLanes;
        constexpr int kWidth = T::kColumns / kPieces;
        const int first = static_cast<int>(threadIdx.x) / kLanes;
        const int column = static_cast<int>(threadIdx.x) % kLanes * kWidth;
#pragma unroll
        for (int step = 0; step < T::kRows; step += kRowStep) {
            const int row = step + first;
            if (T::kRows % kRowStep != 0 && row >= T::kRows) break;
            const E* const from = row_of(min(row, rows_left - 1)) + column;
            const unsigned to = tile.at(row, column);
#pragma unroll
            for (int piece = 0; piece < kPieces; piece += kLanes)
                copy_async<kBytes>(to + piece * kBytes, from + piece * kWidth, row < rows_left);
        }
    }

    const Plane<E> rows_; // of entry 0
    const long long stride_entry_;
    const mod::Layouts::Keys keys_;
    int first_key_;
    const bool aligned_; // uniform
};

} // namespace sm80
