// Tiles of the forward kernel: their place in shared memory, and a thread's part of them.
#pragma once

#include "common/place.cuh"
#include "common/select.h"
#include "common/sequence_length.cuh"
#include "sm80/layout.h"
#include "sm80/narrow_operands.cuh"

namespace sm80 {

using mod::Element;
using mod::KeyElement; // eight bits wide, or Element
constexpr bool kKeysAreNarrow = sizeof(KeyElement) == 1;
// The type that both products take: f16 if keys and values are narrow, as these are converted to it
// with the fewest instructions.
using Operand = Select<kKeysAreNarrow, flexc_f16, Element>;
constexpr bool kEntriesHaveScales = kKeysAreNarrow && !mod::Layouts::Keys::kAreInOrder;

constexpr int kThreads = 32 * mod::kWarps;
constexpr int kRowFragments = mod::kQueryTile / mod::kWarps / 16; // in a warp, of 16 rows each
constexpr int kWarpRows = 16 * kRowFragments;
constexpr int kKeyColumns = mod::kKeyTile / 8; // accumulators of 8 columns
constexpr int kValueColumns = round_up(mod::kHeadDimV, 16) / 8;

using QueryTile = Tile<Element, mod::kQueryTile, mod::kHeadDim>;
using KeyTile = Tile<KeyElement, mod::kKeyTile, mod::kHeadDim>;
using ValueTile = Tile<KeyElement, mod::kKeyTile, mod::kHeadDimV>;
constexpr TileSizes kSizes{mod::kQueryTile,
                           mod::kKeyTile,
                           mod::kStages,
                           mod::kHeadDim,
                           mod::kHeadDimV,
                           static_cast<int>(sizeof(Element)),
                           static_cast<int>(sizeof(KeyElement)),
                           kEntriesHaveScales};
constexpr ForwardLayout kLayout = forward_layout(kSizes);
// One tile is read while the next arrives, unless a block has all tiles of a sequence at once.
constexpr bool kHasOneKeyTile = mod::kStages == 1;
static_assert(kLayout.bytes <= mod::kSharedBytes);

struct Shared {
    unsigned base; // queries
    unsigned stages = base + kLayout.stages;

    __device__ QueryTile queries() const { return {base}; }
    __device__ KeyTile keys(int step) const {
        return {stages + step % mod::kStages * kLayout.stage_bytes};
    }
    __device__ ValueTile values(int step) const { return {keys(step).base + kLayout.values}; }
    // A float for each key of the tile, and behind these one for each value.
    __device__ unsigned key_scales(int step) const { return keys(step).base + kLayout.scales; }
    __device__ unsigned value_scales(int step) const {
        return key_scales(step) + 4 * mod::kKeyTile;
    }
};

// Clears the padding of all tiles.
__device__ inline void clear_padding(const Shared& shared) {
    clear_padding<kThreads>(shared.queries());
#pragma unroll 1
    for (int i = 0; i < mod::kStages; ++i) {
        clear_padding<kThreads>(shared.keys(i));
        clear_padding<kThreads>(shared.values(i));
    }
}

// A thread's accumulators: in each fragment of rows, columns 2t and 2t + 1 of rows g and g + 8, for
// lane 4 g + t. In the output of narrow values, each of two fragments of columns holds every other
// column: see narrow_operands.cuh.
using Scores = float[kRowFragments][kKeyColumns][4];
using Output = float[kRowFragments][kValueColumns][4];

// The rows of one thread: row i is row 8 (i % 2) + g of fragment i / 2.
constexpr int kRows = 2 * kRowFragments;
__device__ inline float& element_of(Scores& scores, int row, int column) {
    return scores[row / 2][column / 2][row % 2 * 2 + column % 2];
}

// What functions on elements take beside the element.
struct Surroundings {
    const AttentionArguments& attention;
    const mod::Arguments& arguments;
    const HeadPlace& place;
    SequenceLength length;
};

// Returns the position of the key at one of a thread's columns of a tile.
__device__ inline int position_of(int column, int first_kv) {
    return first_kv + column / 2 * 8 + lane_index() % 4 * 2 + column % 2;
}

// A thread's rows, which are queries of one head.
struct Rows {
    mod::Row value[kRows];
    int q[kRows]; // as the program sees it

    __device__ void find(const Surroundings& around, int first_row, int lane) {
        const auto& [attention, arguments, place, length] = around;
        find_positions(length, first_row, lane);
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            value[i] = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                   place.h_kv, q[i]);
    }
    __device__ void find_positions(const SequenceLength& length, int first_row, int lane) {
#pragma unroll
        for (int i = 0; i < kRows; ++i)
            q[i] = length.q_idx(first_row + 8 * i + lane / 4);
    }

    // Calls visit(row, element, inside) for this thread's rows at one of its 2 * kKeyColumns
    // columns. What the program computes once for a column is kept only for this call.
    template <typename Visit>
    __device__ void visit_column(int column, const Surroundings& around, int first_kv,
                                 Visit visit) const {
        const auto& [attention, arguments, place, length] = around;
        const int position = position_of(column, first_kv);
        const bool inside = position < length.keys();
        const int kv = length.kv_idx(position);
        const mod::Column of_column =
            mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv);
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
            const mod::At at{arguments, place.launch, place.head, value[row], of_column,
                             place.b,   place.h,      place.h_kv, q[row],     kv};
            visit(row, at, inside);
        }
    }
};

} // namespace sm80
