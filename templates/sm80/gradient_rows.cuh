// Stores gradients of a whole sequence: through a tile of elements in shared memory, with copies as
// wide as rows allow; through a tile of floats if the gradient is f32 or its rows cannot be copied
// in pieces.
#pragma once

#include "sm80/backward_mma.cuh"
#include "sm80/backward_output.cuh"

namespace sm80 {

// Copies kBytes of a row from shared to global memory.
template <int kBytes> __device__ inline void copy_out(void* to, unsigned from) {
    struct alignas(kBytes) Piece {
        float words[kBytes / 4];
    } piece;
    if constexpr (kBytes == 16)
        load_shared(piece.words, from);
    else if constexpr (kBytes == 8)
        load_shared(piece.words[0], piece.words[1], from);
    else
        piece.words[0] = load_shared_float(from);
    *static_cast<Piece*>(to) = piece;
}

template <typename T, int kThreads> class GradientRows {
    using E = typename T::Element;
    static constexpr int kBytes = sizeof(E) == 4 ? 0 : kCopyBytes<E, T::kColumns>;

  public:
    // Stores the first `length` rows. `tile`, and `room` for a tile of floats, are shared memory
    // that is no longer in use.
    __device__ GradientRows(T tile, unsigned room, const GradientPlane<E>& plane, int length)
        : tile_(tile), room_(room), plane_(plane), length_(length),
          in_pieces_(kBytes != 0 && !plane.is_wide && plane.narrow.aligned_to(kBytes)) {}

    // Writes factor * result to shared memory. A barrier and copy() must follow.
    template <typename Result> __device__ void put(Result& result, float factor) const {
        if (in_pieces_) {
            if (factor != 1) multiply_all(result, factor);
            store_result(tile_, result);
        } else {
            store_gradient<Tile<float, T::kRows, T::kColumns>, kThreads>(room_, result, plane_, 0,
                                                                         length_, factor);
            __syncthreads(); // the room is free again
        }
    }
    __device__ void copy() const {
        if constexpr (kBytes != 0) {
            constexpr int kPieces = T::kColumns * static_cast<int>(sizeof(E)) / kBytes; // of a row
            constexpr int kPieceColumns = T::kColumns / kPieces;
            if (!in_pieces_) return;
#pragma unroll 4
            for (int i = threadIdx.x; i < T::kRows * kPieces; i += kThreads) {
                const int row = i / kPieces, column = i % kPieces * kPieceColumns;
                if (row >= length_) break;
                copy_out<kBytes>(plane_.narrow.data + row * plane_.narrow.stride_s + column,
                                 tile_.at(row, column));
            }
        }
    }

  private:
    template <typename Result> static __device__ void multiply_all(Result& result, float factor) {
#pragma unroll
        for (int row = 0; row < Result::kRows; ++row)
#pragma unroll
            for (int column = 0; column < Result::kColumns; ++column)
#pragma unroll
                for (int side = 0; side < 2; ++side)
                    result.at(row, column, side) *= factor;
    }

    T tile_;
    unsigned room_;
    GradientPlane<E> plane_;
    int length_;
    bool in_pieces_;
};

} // namespace sm80
