// Tiles of forward_few.cu where a warpgroup has 64 rows: copies of keys and values to shared
// memory, and the two products.
#pragma once

#include "common/static_for.cuh"
#include "sm80/forward_tiles.cuh"
#include "sm90/few_layout.h"
#include "sm90/tma.cuh"
#include "sm90/warpgroup.cuh"
#include "sm90/wgmma_fixed.cuh"

namespace sm90 {

constexpr FewLayout kFewLayout = few_layout({mod::kKeyTile, mod::kHeadDim, mod::kHeadDimV, 2});
constexpr int kFewKeys = kFewWarps * mod::kKeyTile; // keys of a tile

// Addresses of a swizzled tile in shared memory.
template <int kPanelBytes> struct FewTile {
    unsigned base; // of a row whose number eight divides

    __device__ unsigned chunk(int row, int chunk) const { // of 16 bytes
        return base + chunk / 8 * kPanelBytes + row * kFewRowBytes + (chunk % 8 ^ row % 8) * 16;
    }
    __device__ unsigned at(int row, int column) const {
        return chunk(row, column / 8) + column % 8 * 2;
    }
};
using FewQueries = FewTile<kFewRows * kFewRowBytes>;
using FewKeyTile = FewTile<kFewLayout.panel_bytes>; // or of values

// Keys, or values, of one head in memory, which warps copy.
template <int kColumns> class FewKeyRows {
    using E = mod::Element;
    static constexpr int kPieces = kColumns / 8, kRowStep = 32 / kPieces; // 16 bytes each, of a row
    static_assert(32 % kPieces == 0 && mod::kKeyTile % kRowStep == 0);

  public:
    __device__ FewKeyRows(const TensorArgument& tensor, const SequenceLength& length, int h_kv)
        : rows_(plane(tensor, length, h_kv)), stride_entry_(tensor.stride_b),
          is_copied_(rows_.aligned_to(16) && tensor.stride_b * 2 % 16 == 0) {}

    // Starts the copy of a warp's own rows, to rows from `to` on. own: the place of the lane's row.
    // Rows from rows_left on become zeros.
    __device__ void start(FewKeyTile to, KeyPlace own, int rows_left) const {
        const auto address = reinterpret_cast<unsigned long long>(
            rows_.data + own.entry * stride_entry_ + own.row * rows_.stride_s);
        const int lane = sm80::lane_index();
        if (is_copied_) {
#pragma unroll
            for (int first = 0; first < mod::kKeyTile; first += kRowStep) {
                const int row = first + lane / kPieces, piece = lane % kPieces;
                sm80::copy_async<16>(to.chunk(row, piece), at(address, row) + piece * 8,
                                     row < rows_left);
            }
            return;
        }
#pragma unroll 1
        for (int row = 0; row < mod::kKeyTile; ++row) {
            const E* const from = at(address, row);
#pragma unroll 1
            for (int column = lane; column < kColumns; column += 32) {
                E value{};
                if (row < rows_left) value = from[column * rows_.stride_d];
                sm80::store_shared(to.at(row, column), value);
            }
        }
    }

  private:
    static __device__ sm80::Plane<E> plane(const TensorArgument& tensor,
                                           const SequenceLength& length, int h_kv) {
        if constexpr (mod::Layouts::Keys::kAreInOrder)
            return sm80::key_plane<E>(tensor, length, h_kv);
        return {tensor, 0, h_kv};
    }
    // Returns the address of a row, from the lane that knows it.
    static __device__ const E* at(unsigned long long address, int row) {
        return reinterpret_cast<const E*>(__shfl_sync(0xffffffffu, address, row));
    }

    const sm80::Plane<E> rows_;
    const long long stride_entry_;
    const bool is_copied_; // rows can be copied asynchronously; uniform
};

// Looks up where a warp's rows lie, one for each lane.
class FewKeyPlaces {
  public:
    __device__ FewKeyPlaces(const AttentionArguments& attention, const SequenceLength& length)
        : attention_(attention), length_(length) {}

    // Returns the place of the lane's key in a tile. Rows of keys in order are counted from the
    // request's first.
    template <typename Walk> __device__ KeyPlace of(const Walk& at) const {
        if (at.is_done()) return {0, 0};
        const int key =
            min(at.tile() * mod::kKeyTile + sm80::lane_index() % mod::kKeyTile, length_.keys() - 1);
        if constexpr (mod::Layouts::Keys::kAreInOrder)
            return {0, key};
        else
            return keys_of(attention_, length_).place(key);
    }

  private:
    const AttentionArguments& attention_;
    const SequenceLength& length_;
};

// Makes the tiles that threads have copied visible to the products of all threads.
__device__ inline void meet_few_copies() {
    publish_shared();
    __syncthreads();
}

// scores = Q K^T.
__device__ inline void multiply_few_keys(sm80::Scores (&of_warps)[kFewWarps], FewQueries queries,
                                         FewKeyTile keys) {
    auto& scores = reinterpret_cast<float(&)[kFewKeys / 2]>(of_warps);
    const unsigned a = operand_word(queries.base, 0), b = operand_word(keys.base, 0);
    fence_wgmma();
    static_for<mod::kHeadDim / 16>([&](auto index) {
        using P = FixedWgmma<mod::Element, kFewKeys>;
        constexpr int kStep = decltype(index)::kValue;
        constexpr int kPanel = kStep / 4, kInside = kStep % 4 * 32;
        constexpr int kA = kPanel * kFewRows * kFewRowBytes + kInside;
        constexpr int kB = kPanel * kFewLayout.panel_bytes + kInside;
        if constexpr (kStep == 0)
            P::template start<kA, kB, false>(scores, a, b);
        else
            P::template add<kA, kB, false>(scores, a, b);
    });
    commit_wgmma();
    wait_for_wgmma<0>();
    pin(scores);
}

// output += P V.
__device__ inline void add_few_values(sm80::Output& of_rows,
                                      const sm80::Scores (&weights)[kFewWarps], FewKeyTile values) {
    auto& output = reinterpret_cast<float(&)[mod::kHeadDimV / 2]>(of_rows);
    constexpr int kSteps = mod::kKeyTile / 16; // in the keys that a warp loaded
    unsigned p[kFewWarps * kSteps][4];
#pragma unroll
    for (int i = 0; i < kFewWarps * kSteps; ++i) {
        const auto operand =
            sm80::operand_from_accumulators<mod::Element>(weights[i / kSteps][0], i % kSteps);
#pragma unroll
        for (int j = 0; j < 4; ++j)
            p[i][j] = operand.registers[j];
    }
    const unsigned b = operand_word(values.base, kFewLayout.panel_bytes);
    pin(output);
    fence_wgmma();
    static_for<kFewKeys / 16>([&](auto index) {
        constexpr int kStep = decltype(index)::kValue;
        FixedWgmma<mod::Element, mod::kHeadDimV>::template add_registers<kStep * 16 * kFewRowBytes>(
            output, p[kStep], b);
    });
    commit_wgmma();
    wait_for_wgmma<0>();
    pin(output);
    pin(p);
}

} // namespace sm90
