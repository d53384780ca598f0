// Sums dS over the diagonals of tiles that follow each other, with a sum for each way in which
// digits borrow: for buffers whose indices use differences of digits that begin at multiples of
// eight, and those that use q - kv. Two warps of the producer warpgroup do so, each for itself.
//
// A lane takes eight queries and eight keys at a time, and sums their fifteen diagonals in
// registers, where which element is on which is known to the compiler. Digits begin at multiples of
// eight, so that elements on and below such a block's diagonal have one form, those above it one.
// Its sums are added to the warp's in shared memory, of 128 distances around those of the tile,
// eight neighbours together. Four lanes may have the same distances, and each of these has a copy
// of its own; the others come one after another. From one tile to the next half of the distances
// pass, and go to memory.
#pragma once

#include "sm90/backward_heads.cuh"
#include "sm90/backward_query_tiles.cuh"
#include "sm90/gradients/grid_memory.cuh"

namespace sm90 {

class GridSums {
  public:
    static constexpr int kRows = kSharesKeys ? mod::kQueryTile / 2 : mod::kQueryTile;

    // head: index over batch and heads. memory: address of the warp's sums, which are zeros.
    // first_key: that of its panel.
    __device__ GridSums(const KernelArguments& attention, int head, unsigned memory, int first_key)
        : attention_(attention), head_(head), memory_(memory), first_key_(first_key) {}

    // d_scores: address of the warp's rows of its panel, which start with first_query.
    __device__ void add_tile(unsigned d_scores, int first_query) {
        move_to(first_query - first_key_);
#pragma unroll 1
        for (int first = 0; first < kRows; first += 8 * kGridCopies) {
            const int row = first + 8 * copy();
            const Block block{d_scores + row * kRowBytes,
                              first_query + row + static_cast<int>(attention_.q_offset),
                              first_key_ + 8 * chunk() + static_cast<int>(attention_.kv_offset),
                              ((distance_ + row) >> 3) - chunk()};
            add_part<Part::below>(block);
            add_part<Part::above>(block);
        }
    }
    // Called after the last tile: adds the remaining sums to memory.
    __device__ void flush() { move_to(distance_ + kGridDistances); }

  private:
    static constexpr int kRowsAtOnce = 2; // whose loads are in flight
    static_assert(kGridDistances == 128 && kGridStep == 8);
    static_assert(mod::GridGradients::kPlaces == 0 || (mod::kQueryTile == 64 && kRows % 32 == 0));

    struct Block {
        unsigned rows;  // the first one's place in shared memory
        int query, key; // first ones, as the program sees them
        int number;     // its diagonal, in eights
    };
    // Which elements of a block: on and below its diagonal, or above it.
    enum class Part { below, above };
    // sums[i] belongs to the diagonal that is i queries below the middle one, or i - 8.
    using Sums = float[8];

    static __device__ int lane() { return lane_again(); }
    static __device__ int copy() { return lane() / 8; }
    static __device__ int chunk() { return lane() % 8; } // of eight keys

    template <Part kPart> __device__ void sum_part(const Block& block, Sums& sums) const {
        constexpr mod::Element kKind{};
        constexpr bool kAbove = kPart == Part::above;
        // The row that is i further on is found by adding i * 128, and for the swizzle i * 16,
        // without carries.
        const unsigned from = block.rows + chunk() * 16;
#pragma unroll
        for (int first = 0; first < 8; first += kRowsAtOnce) {
            unsigned words[kRowsAtOnce][2][2];
#pragma unroll
            for (int i = first; i < first + kRowsAtOnce; ++i)
                load_row(words[i - first], from ^ i * (kRowBytes + 16), kAbove ? i < 3 : true,
                         kAbove ? i < 7 : i > 3);
#pragma unroll
            for (int i = first; i < first + kRowsAtOnce; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const unsigned word = words[i - first][j / 4][j / 2 % 2];
                    if (j > i != kAbove) continue;
                    sums[(8 + i - j) % 8] +=
                        j % 2 == 0 ? flexc_first(kKind, word) : flexc_second(kKind, word);
                }
        }
    }
    // Loads the first four keys of a row, the last four, or all.
    static __device__ void load_row(unsigned (&words)[2][2], unsigned from, bool first, bool last) {
        if (first && last) {
            int of[4];
            load_shared(from, of[0], of[1], of[2], of[3]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                words[i / 2][i % 2] = static_cast<unsigned>(of[i]);
        } else if (first) {
            load_shared(from, words[0]);
        } else if (last) {
            load_shared(from + 8, words[1]);
        }
    }

    // Sums a part of a block, all of whose elements have one form, and adds it to the warp's sums.
    template <Part kPart> __device__ void add_part(const Block& block) const {
        constexpr int kFirst = static_cast<int>(kPart);
        Sums sums{};
        sum_part<kPart>(block, sums);
        add(GridDigits::form_of(block.query, block.key + kFirst), block.number - kFirst, sums);
    }

    // Adds to the warp's sums. Lanes with the same copy have different distances.
    __device__ void add(int form, int number, const Sums& sums) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const unsigned to = address(form, copy(), number, half);
            float of[4];
            load_shared(to, of);
            const float* const more = sums + 4 * half;
            store_shared(to, of[0] + more[0], of[1] + more[1], of[2] + more[2], of[3] + more[3]);
        }
        __syncwarp();
    }
    // Returns the address of the sums of four distances: the first or last of eight. Eight lanes
    // with eight blocks that follow each other are in all banks.
    __device__ unsigned address(int form, int copy, int number, int half) const {
        const int block = (form * kGridCopies + copy) * (kGridDistances / 8) + (number & 15);
        return memory_ + block * 32 + ((number >> 2 ^ half) & 1) * 16;
    }

    // Moves to the tile of this distance: adds the half that has no part in it to memory, or both
    // halves if the tile does not follow the last one.
    __device__ void move_to(int distance) {
        constexpr int kHalf = kGridDistances / 2;
#pragma unroll 1
        for (int half = distance_ - kHalf; half <= distance_; half += kHalf)
            if (half != distance - kHalf && half != distance) flush_half(half);
        distance_ = distance;
    }
    // Adds the sums of 64 distances to memory.
    __device__ void flush_half(int first) const {
        const int distance = first + lane() % 16 * 4;
#pragma unroll 1
        for (int form = lane() / 16; form < kGridForms; form += 2) {
            float sums[4] = {};
#pragma unroll
            for (int copy = 0; copy < kGridCopies; ++copy) {
                const unsigned from = address(form, copy, distance >> 3, distance >> 2);
                float of[4];
                load_shared(from, of);
                store_shared(from, 0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    sums[i] += of[i];
            }
            GridMemory::add(attention_, head_, form, distance, sums);
        }
        __syncwarp();
    }

    const KernelArguments& attention_;
    const int head_;
    const unsigned memory_;
    const int first_key_;
    int distance_ = 0; // of the tile's first query and key
};

// Called by one warp, for all of the block's tiles.
__device__ inline void sum_grids(const KernelArguments& attention, const mod::Arguments& arguments,
                                 Shared shared, const KeyTile& keys, int warp) {
    const unsigned memory = shared.base + kLayout.tables + warp * 4 * mod::TableGradients::kWords;
    for (int i = static_cast<int>(threadIdx.x) % 32; i < mod::TableGradients::kWords; i += 32)
        store_shared_word(memory + 4 * i, 0);
    __syncwarp();
    const int first_row = kSharesKeys ? warp * GridSums::kRows : 0;
    const int first_key = keys.first_kv + (kSharesKeys ? 0 : warp * kPanelColumns);
    const unsigned d_scores =
        shared.base + kLayout.d_scores + (kSharesKeys ? first_row * kRowBytes : warp * kQueryPanel);
    sum_tiles(attention, arguments, keys, d_scores, first_row, [&](const HeadPlace& place) {
        return GridSums(attention, place.b * attention.heads + place.h, memory, first_key);
    });
}

} // namespace sm90
