// What the threads of the backward kernel share: sizes and shared memory.
#pragma once

#include "common/element.cuh"
#include "common/select.h"
#include "sm90/backward_layout.h"
#include "sm90/barrier.cuh"
#include "sm90/gradients/distance_sums.cuh"
#include "sm90/key_width.cuh"
#include "sm90/mask_tile.cuh"
#include "sm90/warpgroup.cuh"

extern __shared__ __align__(1024) unsigned char shared_memory[];

namespace sm90 {

// Whether consumers add dS to the entries of tables.
constexpr bool kSumsEntries = mod::TableGradients::kEntries > 0;
// Whether warps of the producer warpgroup sum over the tile of dS.
constexpr bool kSumsInTile = mod::ReadGradients::kSumsDistances ||
                             mod::KeyIndex2d::kSumsQuotients || mod::KeyIndex2d::kSumsRemainders ||
                             (mod::TableGradients::kCount > 0 && !kSumsEntries) ||
                             (mod::ShiftedGradients::kCount > 0);
// Words of a warp that sums tables.
constexpr int kTableWords = mod::TableGradients::kWords + mod::TableGradients::kKindWords;
constexpr __device__ BackwardShape shape_of_program() {
    BackwardShape shape{};
    shape.head_dim = mod::kHeadDim;
    shape.head_dim_v = mod::kHeadDimV;
    shape.query_tile = mod::kQueryTile;
    shape.d_scores_stages = mod::kDScoresStages;
    shape.bias_stages = mod::DenseBias::kStages;
    shape.bias_bytes = sizeof(mod::DenseBias::Element);
    shape.bias_is_shifted = mod::DenseBias::kIsShifted;
    shape.bias_is_by_key = mod::DenseBias::kIsByKey;
    shape.adds_bias_gradients = mod::DenseBias::kGradient >= 0;
    shape.biases_are_narrow = mod::DenseBias::kIsNarrow;
    shape.sums_tile = kSumsInTile;
    shape.are_alone = mod::ReadGradients::kAreAlone;
    constexpr int kRowBytes = sizeof(mod::Row);
    // Terms are summed when the next tile's rows may have been staged.
    const bool has_warp = !kSumsInTile || (!shape.shares_keys() && mod::KeyIndex2d::kWidth == 0);
    const bool stages_rows = !__is_empty(mod::Row) && kRowBytes <= shape.most_row_bytes() &&
                             has_warp && mod::ReadGradients::kStageRows &&
                             !mod::TermSums::kExist;
    shape.row_bytes = stages_rows ? kRowBytes : 0;
    shape.key_width = kKeyWidth;
    shape.row_reads = mod::KeyIndex2d::kRowReads;
    shape.column_reads = mod::KeyIndex2d::kColumnReads;
    shape.column_bytes = mod::KeyIndex2d::kColumnBytes;
    shape.column_sums =
        mod::KeyIndex2d::kStagesSums && mod::KeyIndex2d::kSumsRemainders ? kKeyWidth : 0;
    shape.table_words = kTableWords;
    shape.entry_words =
        kSumsEntries ? (mod::TableGradients::kEntries + 1) << mod::TableGradients::kCopyShift : 0;
    shape.has_weighted_tile = mod::ReadGradients::kWeighted >= 0;
    shape.query_sums = mod::ReadGradients::kQuerySums;
    shape.term_words = mod::TermSums::kWords;
    shape.has_block_mask = mod::Mask::kHasBlockMask;
    shape.is_persistent = mod::kPersistent;
    shape.is_ragged = mod::Layouts::kKeysAreRagged;
    return shape;
}
constexpr BackwardShape kShape = shape_of_program();
static_assert(kShape.key_tile() == mod::kKeyTile);

// Whether the kernel computes gradients of buffers alone.
constexpr bool kAreAlone = kShape.are_alone;
constexpr int kThreads = 128 * (kConsumers + 1);
constexpr bool kSharesKeys = kShape.shares_keys();
constexpr int kScoreQueries = kSharesKeys ? mod::kQueryTile / kConsumers : mod::kQueryTile;
static_assert(kThreads == 32 * mod::kWarps);

constexpr bool kSumsIndex2d = mod::KeyIndex2d::kSumsQuotients || mod::KeyIndex2d::kSumsRemainders;

// Position in shared memory of a row's panel, counted in panels. Of three panels the middle one
// comes last, because backward_share.cuh needs it at a higher address than both others.
constexpr __device__ int place_of_panel(int panel, int count) {
    return count == 3 ? (3 - panel) % 3 : panel;
}
constexpr int kPanels = panels(mod::kHeadDim), kValuePanels = panels(mod::kHeadDimV);
constexpr int kQueryPanel = kShape.query_panel(), kKeyPanel = kShape.key_panel();
constexpr int kGroups = kShape.groups(); // groups of eight columns in a row block
constexpr int kRowBlocks = kShape.row_blocks();
static_assert(kRowBlocks == 1 || (kRowBlocks == 2 && kGroups <= 8));

// Biases: a tile has a row for each query. Where their gradient is added in parts, dq goes to the
// accumulator from registers, half of the columns from each warpgroup.
constexpr bool kCopiesBiases = mod::DenseBias::kStages > 0;
constexpr bool kAddsBiasGradients = kShape.adds_bias_gradients;
constexpr bool kBiasIsShifted = kShape.bias_is_shifted;
constexpr int kBiasRing = kCopiesBiases ? mod::DenseBias::kStages : 1;
constexpr int kBiasBytes = kShape.bias_bytes;
constexpr int kBiasRowBytes = kShape.bias_row_bytes();
constexpr int kBiasTileBytes = kShape.bias_tile_bytes();
constexpr bool kAddsTiles = kShape.adds_tiles(), kAddsParts = kShape.adds_parts();
constexpr int kPartRows = kShape.part_rows(); // queries in a part of the gradient
constexpr int kParts = mod::kQueryTile / kPartRows;
constexpr int kGradientRowBytes = kShape.gradient_row_bytes();
constexpr int kPartBytes = kShape.part_bytes();
constexpr bool kReadsTile = kShape.reads_tile();

constexpr bool kAlternatesDq = kShape.alternates_dq();
constexpr int kPieces = kShape.pieces();
constexpr int kPieceRowBlocks = kShape.piece_row_blocks(), kPieceColumns = kShape.piece_columns();
// The second panel of keys starts with the second piece.
constexpr int kKeyPanelColumns =
    kPanels == 2 && !kSharesKeys && !kAlternatesDq ? kPieceColumns : kPanelColumns;
// Returns the number of groups of eight columns of dq in a piece.
constexpr __device__ int groups_of(int piece) { return kShape.groups_of(piece); }
constexpr int kPieceBytes = kShape.piece_bytes(); // of the first piece, the largest

// Whether a warp computes what the program computes once for a query: one of its own, or where that
// sums tiles, the one that loads queries.
constexpr bool kStagesRows = kShape.row_bytes > 0;
constexpr bool kLoaderStagesRows = kStagesRows && kSumsInTile;
constexpr bool kWarpStagesRows = kStagesRows && !kSumsInTile;
// The same of copies of biases.
constexpr bool kLoaderCopiesBiases = kCopiesBiases && kSumsInTile;
constexpr bool kWarpCopiesBiases = kCopiesBiases && !kSumsInTile;

constexpr int kDScoresBytes = kShape.d_scores_bytes(); // of a stage
// Whether MMAs sum dS over the 2-D key index, where tiles of keys are whole rows of it. What they
// leave for its columns goes to memory by TMA, with a row for each query.
constexpr bool kSumsByMma = kSumsIndex2d && mod::KeyIndex2d::kStagesSums;
constexpr int kSumsRowBytes = 4 * kKeyWidth;
constexpr int kQuerySumsBytes = kShape.query_sums_bytes();
static_assert(!kSharesKeys || mod::ReadGradients::kQuerySums == 0);
constexpr int kDScoresThreads = 128 * kConsumers + (kReadsTile ? 32 * kSumWarps : 0);

// Reads by a query and a row or column of the 2-D key index are staged beside the queries: for each
// read by the row, a float for each row that a tile of keys touches and each query; for each read
// by the column, the columns of each query, as they are in memory.
constexpr bool kStagesIndex2d = mod::KeyIndex2d::kRowReads + mod::KeyIndex2d::kColumnReads > 0;
constexpr int kIndex2dRows = kShape.index_2d_rows();
constexpr int kRowReadBytes = kShape.row_read_bytes();
constexpr int kColumnPitch = kShape.column_pitch();
constexpr int kColumnReadBytes = kShape.column_read_bytes();
constexpr int kIndex2dBytes = kShape.index_2d_bytes(); // of a stage

constexpr int kOwnBarriers = kShape.own_barriers();
constexpr int kStatisticBytes = kShape.statistic_bytes(); // of a tile

constexpr BackwardLayout kLayout = backward_layout(kShape);
// A persistent kernel loads the next tile's keys while this one's are in use, if there is room.
constexpr int kKeySlots =
    mod::kPersistent && kLayout.spare_keys + kPanels * kKeyPanel <= mod::kSharedBytes ? 2 : 1;
static_assert(kLayout.end <= mod::kSharedBytes);
// The tile that warps sum for tables: dS, or elements of a gradient, which have the range of floats
// for f16 too. A stage has as many bytes as one of dS.
constexpr bool kHasWeightedTile = kShape.has_weighted_tile;
constexpr int kSummedTile = kHasWeightedTile ? kLayout.weighted : kLayout.d_scores;
using SummedElement = Select<kHasWeightedTile, flexc_bf16, mod::Element>;
static_assert(!kHasWeightedTile || !kSharesKeys);
// TMA and loads of 8 x 8 matrices need an alignment of 16 bytes.
static_assert(kLayout.index_2d % 16 == 0 && kLayout.sums % 16 == 0);
static_assert(!mod::kPersistent || kShape.can_be_persistent());
// Ragged keys need a persistent kernel, since some of their places have no tile.
static_assert(mod::Layouts::kAreDense || (mod::kPersistent && mod::Layouts::kQueriesAreRagged &&
                                          mod::Layouts::kKeysAreRagged));

// Barriers and addresses in shared memory. A pair of barriers is one for each stage of a ring, or
// for each warpgroup.
struct Shared {
    unsigned base;

    __device__ Barrier keys(int slot = 0) const { return barrier(slot == 0 ? 0 : kOwnBarriers); }
    __device__ Barrier values() const { return barrier(1); }
    __device__ Barrier queries_full(int stage) const { return barrier(2 + stage); }
    __device__ Barrier queries_empty(int stage) const { return barrier(4 + stage); }
    __device__ Barrier d_out_full(int stage) const { return barrier(6 + stage); }
    __device__ Barrier d_out_empty(int stage) const { return barrier(8 + stage); }
    __device__ Barrier piece_full(int warpgroup) const { return barrier(10 + warpgroup); }
    __device__ Barrier piece_empty(int warpgroup) const { return barrier(12 + warpgroup); }
    __device__ Barrier biases_full(int stage) const { return barrier(14 + 2 * stage); }
    __device__ Barrier biases_empty(int stage) const { return barrier(15 + 2 * stage); }
    // With one stage of dS: completes when all MMAs that read it have ended.
    __device__ Barrier d_scores_empty() const { return barrier(14 + 2 * mod::DenseBias::kStages); }

    // Where gradients by query are summed over warps: completes when all warps have written their
    // sums of a step.
    __device__ Barrier sums_full() const { return barrier(kOwnBarriers - 1); }

    // Address of the word that says which tile of queries a stage holds, where a block mask chooses
    // it.
    __device__ unsigned mask_tile(int stage) const { return base + kLayout.mask_tiles + 4 * stage; }

    // Barriers of persistent kernels complete when: a slot of keys, or the values, may be
    // overwritten; the last tile of queries of a tile of keys was requested; dv, or dk, is in
    // shared memory; dv was stored from there.
    __device__ Barrier keys_empty(int slot) const { return barrier(kOwnBarriers + 1 + slot); }
    __device__ Barrier values_empty() const { return barrier(kOwnBarriers + 3); }
    __device__ Barrier queries_end() const { return barrier(kOwnBarriers + 4); }
    __device__ Barrier d_values_full() const { return barrier(kOwnBarriers + 5); }
    __device__ Barrier d_keys_full() const { return barrier(kOwnBarriers + 6); }
    __device__ Barrier d_values_read() const { return barrier(kOwnBarriers + 7); }

    // Address of the tile that a slot of keys holds, as KeyTile, and the slot's offset from the
    // first slot.
    __device__ unsigned key_tile(int slot) const {
        return base + kLayout.key_tiles + kShape.key_tile_bytes() * slot;
    }
    static __device__ int slot_offset(int slot) {
        return kKeySlots == 1 ? 0 : slot * (kLayout.spare_keys - kLayout.keys);
    }
    static __device__ unsigned slot_words(int slot) { // in units of operand words, 16 bytes
        return static_cast<unsigned>(slot_offset(slot)) >> 4;
    }
    // A warpgroup's dk and dv pass through shared memory: dk where its keys were, dv where its
    // values were. Persistent kernels already load the next values, so that dv goes to the stage of
    // dS that only this warpgroup multiplies.
    __device__ unsigned d_keys(int warpgroup, int slot) const {
        return base + kLayout.keys + slot_offset(slot) + warpgroup * (64 * kRowBytes);
    }
    __device__ unsigned d_values(int warpgroup) const {
        return mod::kPersistent ? base + kLayout.d_scores + warpgroup * kDScoresBytes
                                : base + kLayout.values + warpgroup * (64 * kRowBytes);
    }

    __device__ unsigned index_2d(int stage) const {
        return base + kLayout.index_2d + stage * kIndex2dBytes;
    }

    static __device__ mod::Row* rows(int stage) {
        return reinterpret_cast<mod::Row*>(shared_memory + kLayout.rows) + stage * mod::kQueryTile;
    }

    __device__ void initialise() const {
        keys().initialise(1);
        values().initialise(1);
        for (int i = 0; i < 2; ++i) {
            queries_full(i).initialise(1 + (kStagesRows ? 32 : 0) + (kStagesIndex2d ? 2 * 32 : 0));
            queries_empty(i).initialise(128 * kConsumers);
            d_out_full(i).initialise(1);
            d_out_empty(i).initialise(4 * kConsumers);
            piece_full(i).initialise(128);
            piece_empty(i).initialise(kAddsBiasGradients ? 32 : 1);
        }
        if constexpr (mod::kDScoresStages == 1) d_scores_empty().initialise(128 * kConsumers);
        if constexpr (mod::ReadGradients::kQuerySums > 0) sums_full().initialise(128 * kConsumers);
        for (int i = 0; i < mod::DenseBias::kStages; ++i) {
            biases_full(i).initialise(kBiasIsShifted ? 64 : 32);
            biases_empty(i).initialise(128 * kConsumers);
        }
        if constexpr (mod::kPersistent) initialise_for_next();
        publish_barriers();
    }

  private:
    // Initialises the barriers of a persistent kernel's tiles of keys.
    __device__ void initialise_for_next() const {
        keys(1).initialise(1);
        for (int i = 0; i < 2; ++i)
            keys_empty(i).initialise(2 + (kWarpStagesRows || kWarpCopiesBiases));
        values_empty().initialise(4 * kConsumers);
        queries_end().initialise(1);
        d_values_full().initialise(128 * kConsumers);
        d_keys_full().initialise(128 * kConsumers);
        d_values_read().initialise(1);
    }

    __device__ Barrier barrier(int index) const { return {base + kLayout.barriers + 8 * index}; }
};

// Stages of dS in shared memory. With two, no barrier guards reuse: between two writes to one
// stage, all threads pass the barrier of the other.
template <int kStages> struct DScoresStages {
    static __device__ void wait(const Shared&, unsigned) {}
    static __device__ void release(const Shared&) {}
};
template <> struct DScoresStages<1> {
    static __device__ void wait(const Shared& shared, unsigned step) {
        shared.d_scores_empty().wait((step & 1) ^ 1);
    }
    static __device__ void release(const Shared& shared) { shared.d_scores_empty().arrive(); }
};
using DScoresRing = DScoresStages<mod::kDScoresStages>;

// Bytes of a panel of dv in shared memory, on its way to global memory.
constexpr int kDValuesPanel = mod::kPersistent ? kQueryPanel : kKeyPanel;

// Indices of named barriers; 0 is __syncthreads(). Where warpgroups alternate, even and odd tiles
// have barriers of their own: a warpgroup that does not multiply a tile's dS may already arrive for
// the next tile.
constexpr int kLastMmaBarrier = 1, kPBarrier = 2, kDScoresBarrier = 3; // and the next index
constexpr int kEntriesBarrier = kDScoresBarrier + 1; // where warpgroups do not alternate
constexpr int kSequenceEndsBarrier = 5; // one for each warpgroup: this and the next index

// Waits until dS of a tile is in shared memory.
__device__ inline void synchronize_d_scores() {
    if constexpr (kReadsTile)
        synchronize_roles(kDScoresBarrier, kDScoresThreads);
    else
        synchronize(kDScoresBarrier, kDScoresThreads);
}
// The same, where warpgroups alternate: only the one that multiplies this tile waits, the other
// arrives.
__device__ inline void synchronize_d_scores(int step, bool waits) {
    const auto synchronize_at = [&](int barrier) {
        waits ? synchronize_roles(barrier, kDScoresThreads) : arrive(barrier, kDScoresThreads);
    };
    // Written so that the barriers' indices are constants.
    step % 2 == 0 ? synchronize_at(kDScoresBarrier) : synchronize_at(kDScoresBarrier + 1);
}

} // namespace sm90
