// What the threads of the backward kernel share: sizes and shared memory.
#pragma once

#include "sm90/barrier.cuh"
#include "sm90/distance_sums.cuh"
#include "sm90/mapped_tile.cuh"
#include "sm90/warpgroup.cuh"

extern __shared__ __align__(1024) unsigned char shared_memory[];

namespace sm90 {

constexpr int kConsumers = 2; // warpgroups
constexpr int kThreads = 128 * (kConsumers + 1);
// A warpgroup has 64 keys of its own, or where dk and dv are too wide for its registers, half of
// their columns for the same 64 keys as the other; then it has the scores of half of the queries.
constexpr bool kSharesKeys = mod::kKeyTile == 64;
constexpr int kScoreQueries = kSharesKeys ? mod::kQueryTile / kConsumers : mod::kQueryTile;
static_assert(kThreads == 32 * mod::kWarps && (kSharesKeys || mod::kKeyTile == 64 * kConsumers));

// What a score mod's derivative asks of the order of things. Where the derivative with respect to
// the score is the same for any score, weights are computed under the product of values, and the
// derivative afterwards. Where only it needs the score, it is multiplied into the weights when they
// have been packed. Where gradients of buffers need the score too, both products come first.
constexpr bool kAtOnce =
    mod::kAddsGradients && (mod::kDerivativeUsesScore || mod::kPartialsUseScore);
constexpr bool kFolds = !kAtOnce && mod::kDerivativeUsesScore;

// The mod spilled without this. First, the warps beside the products save registers. Then what
// takes a few instructions to find is found again, not kept, a thread's place too, and what a tile
// shows is found after its products. In the last, branches keep ptxas from computing more scores at
// once than those of a few pairs of queries, and lanes are asked for: with short tiles, masks spill
// more by it, and with long ones, scores.
constexpr bool kSavesBeside = mod::kSavesRegisters > 0;
constexpr bool kSavesRegisters = mod::kSavesRegisters > 1;
constexpr bool kFindsAgain = kSavesRegisters && mod::kHasScoreMod; // masks would spill by it
constexpr bool kModifiesInParts = mod::kSavesRegisters > 2 && mod::kHasScoreMod;
// With long tiles instead of the branches, not beside them.
constexpr bool kFindsPlaces = kFindsAgain && !(kModifiesInParts && mod::kQueryTile == 128);
constexpr int kPairsAtOnce = kFolds ? 2 : 4;
constexpr bool kAsksForLane = mod::kHasScoreMod
                                  ? mod::kSavesRegisters > 2 && (mod::kQueryTile < 128)
                                  : kSavesRegisters && (mod::kQueryTile == 128);

// Sums of queries wait for the products that follow, under which lanes exchange them; half of them
// do not where registers are shortest.
constexpr bool kExchangesEarly = kAtOnce;
constexpr bool kLooksEarly = !mod::kAddsGradients && !kFindsPlaces;

// For reads by distance, the number of a head over batch and heads is kept, and nothing else of it.
constexpr bool kFindsHeads = kSavesRegisters && mod::kDistanceValues > 0 && !mod::kBlocksStay;

constexpr bool kMaskIsBand = !mod::kHasMask || (mod::kHasBand && mod::kBandIsExact);
// Whether what a mask needs is more than the registers beside products hold. Not bands, but for
// those with a prefix, nor masks of a word for each query and key, as documents have; where keys
// are shared there is room. A mask that spilled is long.
constexpr bool kMaskIsLong =
    !kSharesKeys && !mod::kHasScoreMod &&
    (kSavesRegisters ||
     (kMaskIsBand ? has(Clamp::last_least) && mod::kQueryTile < 128
                  : sizeof(mod::Row) != sizeof(int) || sizeof(mod::Column) != sizeof(int)));
// Then what a tile shows is found out before dP's product, which takes registers. Not where tiles
// are long and reads for each element would hold that up.
constexpr bool kLooksBetween = kMaskIsLong && !(mod::kMaskReadsElements && mod::kQueryTile == 128);

constexpr bool kSumsGrid = mod::kSumsQuotients || mod::kSumsRemainders;

constexpr int kPanelColumns = 64; // of 16 bits: 128 bytes, the width of the swizzle
constexpr int kRowBytes = 2 * kPanelColumns;
constexpr int panels(int columns) { return (columns + kPanelColumns - 1) / kPanelColumns; }
// Where a panel of a row is in shared memory, counted in panels. The one in the middle of three is
// the last, so that it is behind both of the others: see backward_share.cuh.
constexpr __device__ int place_of_panel(int panel, int count) {
    return count == 3 ? (3 - panel) % 3 : panel;
}
constexpr int round_up_16(int x) { return (x + 15) / 16 * 16; }
constexpr int kPanels = panels(mod::kHeadDim), kValuePanels = panels(mod::kHeadDimV);
constexpr int kQueryPanel = mod::kQueryTile * kRowBytes, kKeyPanel = mod::kKeyTile * kRowBytes;

// dq in its accumulator: slabs of 64 queries, in each of them groups of eight columns in the order
// in which a warpgroup holds them. A piece is all of a tile where warpgroups take turns, else up to
// eight groups: of a warpgroup's own slab where there are two in a tile of queries, else of its own
// columns.
constexpr int kSlabRows = 64, kGroupBytes = kSlabRows * 8 * 4;
constexpr int kGroups = mod::kHeadDim / 8; // of a slab
constexpr int kSlabs = mod::kQueryTile / kSlabRows;
static_assert(kSlabs == 1 || (kSlabs == 2 && kGroups <= 8));

// Biases: a tile has a row for each query. Their gradient is added from the tile of dS where
// buffers have 16 bits; else, 64 queries of it at a time, has a part for each warpgroup's keys,
// where pieces of dq are else: these go to the accumulator from registers then, half of the columns
// from each warpgroup. Rows are as far apart as makes lanes that have eight rows, or other rows of
// fewer keys, meet no bank twice.
constexpr bool kCopiesBiases = mod::kBiasStages > 0;
constexpr bool kAddsMatrices = mod::kMatrixGradient >= 0;
constexpr int kBiasRing = kCopiesBiases ? mod::kBiasStages : 1;
constexpr int kPadding = 16;
constexpr int kBiasBytes = sizeof(mod::BiasElement);
constexpr int kBiasRowBytes = mod::kKeyTile * kBiasBytes + kPadding;
constexpr int kBiasTileBytes = mod::kQueryTile * kBiasRowBytes;
constexpr bool kAddsTiles = kAddsMatrices && mod::kMatrixIsNarrow; // of dS
constexpr bool kAddsParts = kAddsMatrices && !kAddsTiles;
constexpr int kPartRows = kAddsTiles ? mod::kQueryTile : 64; // of the gradient
constexpr int kParts = mod::kQueryTile / kPartRows;
constexpr int kGradientRowBytes = 64 * 4 + kPadding;
constexpr int kPartBytes = kAddsTiles ? 0 : kPartRows * kGradientRowBytes;
// Registers have no room for weights of 128 queries as floats and as fragments beside both
// products. So dS takes the place of the floats before fragments are multiplied; or where that
// would spill more, or was not measured, dS is made of the fragments, which have 16 bits.
constexpr bool kIsLong = kScoreQueries == 128;
constexpr bool kDifferentiatesFirst = kIsLong && !kAtOnce && !kAddsTiles && !kSumsGrid;
static_assert(!kIsLong || !kFolds);
constexpr bool kKeepsFloats = !kIsLong || kDifferentiatesFirst;

// Two warps that have nothing else to do find sums in the tile of dS, or add it to a matrix.
constexpr int kSumWarps = 2;
constexpr bool kSumsInTile = mod::kSumsDistances || mod::kSumsQuotients || mod::kSumsRemainders;
constexpr bool kReadsTile = kSumsInTile || kAddsTiles;

// Registers for dk, dv, all of a tile's dq and a warpgroup's dS beside the rest of a thread's.
constexpr bool kHoldsQueryGradient = (round_up_16(mod::kHeadDim) + round_up_16(mod::kHeadDimV) +
                                      kSlabs * round_up_16(mod::kHeadDim)) /
                                             2 +
                                         mod::kQueryTile / 4 <=
                                     160;
// Fragments of weights leave their registers to what a mod's derivative needs.
constexpr bool kSettlesEarly =
    mod::kQueryTile == 128 && !kAtOnce && (mod::kAddsGradients || !mod::kDerivativeIsOne);

constexpr bool kOverlapsSums = kHoldsQueryGradient && !kSettlesEarly; // of dk and all of dq
// Where products alone read dS, warpgroups take turns at dq: each multiplies every second tile's,
// all of it, while the other goes on, so that seldom both compute scores at once and neither
// multiplies. Else both multiply a piece of every tile's.
constexpr bool kTakesTurns =
    !kSharesKeys && !kAddsMatrices && !kReadsTile && mod::kDScoresStages == 2;
constexpr int kPieces = kTakesTurns ? 1 : kConsumers;
constexpr int kPieceSlabs = kTakesTurns ? kSlabs : 1;
constexpr int kPieceColumns = kTakesTurns                   ? round_up_16(mod::kHeadDim)
                              : kPanels == 1 && kSlabs == 1 ? 32
                              : kSlabs == 2 || kAddsMatrices || mod::kHeadDim > 96 ? 64
                                                                                   : 48;
// The second panel of keys starts with the second piece.
constexpr int kKeyPanelColumns =
    kPanels == 2 && !kSharesKeys && !kTakesTurns ? kPieceColumns : kPanelColumns;
// Whether what is added is dS, not what another derivative makes of it element by element.
constexpr bool kAddsScores = kAddsParts && mod::kMatrixIsOfScores;
static_assert((kParts == 1 || !kAddsMatrices || kAddsScores) && !(kAddsScores && kAtOnce));
static_assert(!kAddsTiles || mod::kDScoresStages == 2);

// Groups of columns of dq in a piece.
constexpr __device__ int groups_of(int piece) {
    if (kSlabs == 2) return kGroups;
    constexpr int kMost = kPieceColumns / 8;
    const int rest = kGroups - kMost * piece;
    return rest < 0 ? 0 : rest < kMost ? rest : kMost;
}
constexpr int kPieceBytes = // of the first
    kTakesTurns ? kPieceSlabs * kGroups * kGroupBytes : kPieceColumns / 8 * kGroupBytes;
constexpr int kPiecesBytes = kPieceBytes + (kTakesTurns ? 0 : groups_of(1) * kGroupBytes);

// What a program computes once for a query is computed by a warp that has nothing else to do.
constexpr int kMostRowBytes = kSharesKeys ? 8 : 16;
constexpr bool kStagesRows =
    !__is_empty(mod::Row) && sizeof(mod::Row) <= kMostRowBytes && !kSumsInTile;

// Registers of a thread; together no more than the launch gave the block. What is done at once
// needs more than the producer's warps can spare without words of their own in memory; those that
// copy and add matrices, sum over a grid of keys, compute what is added to rows, or go on to other
// keys can spare fewer; where matrices or rows alone spilled, it was theirs.
constexpr bool kSparesRegisters = mod::kQueryTile < 128 && mod::kHeadDim + mod::kHeadDimV <= 192;
constexpr bool kModifiesLongTiles =
    mod::kQueryTile == 128 && mod::kHasScoreMod && !(kStagesRows && mod::kDerivativeIsOne);
constexpr bool kNeedsRegisters =
    kAtOnce ? !kAddsMatrices && !kSavesBeside
            : kTakesTurns && (!kHoldsQueryGradient || kModifiesLongTiles) && !mod::kHasMap &&
                  !mod::kBlocksStay && !kMaskIsLong &&
                  !(kSavesBeside && kStagesRows && __is_empty(mod::Column));
constexpr int kProducerRegisters =
    kNeedsRegisters && !kCopiesBiases                                      ? 24
    : kSavesBeside && (kAddsMatrices || (kStagesRows && kSparesRegisters)) ? 56
    : !kSumsGrid                                                           ? 40
    : kSparesRegisters                                                     ? 72
                                                                           : 56;
constexpr int kConsumerRegisters = (504 - kProducerRegisters) / 16 * 8;

// Whether biases are needed after weights are computed.
constexpr bool kHoldsBiases = kCopiesBiases && mod::kDerivativesUseBias && !kAtOnce && !kFolds;

constexpr int kDScoresBytes = panels(mod::kKeyTile) * kQueryPanel; // of a stage
constexpr int kWeightBytes = kSharesKeys ? kDScoresBytes : 0;      // else they stay in registers
// Where tiles of keys are whole rows of their grid, products sum dS over it, and what they leave
// for columns of the grid goes to memory by the copy engine: a row for each query.
constexpr bool kSumsByProducts = kSumsGrid && mod::kStagesSums;
constexpr int kSumsRowBytes = 4 * mod::kKeyWidth;
constexpr int kSumsBytes =
    kSumsByProducts && mod::kSumsRemainders ? mod::kQueryTile * kSumsRowBytes : 0;
// A float for each query from each warp, in as many slots as keep those who write apart from those
// who read: see backward_query_sums.cuh.
constexpr int kQuerySumSlots = 4, kQuerySumsBytes = 4 * kConsumers * mod::kQueryTile * 4;
static_assert(!kSharesKeys || mod::kQuerySums == 0);
constexpr int kDScoresThreads = 128 * kConsumers + (kReadsTile ? 32 * kSumWarps : 0);

// What a program reads by a query and a row or column of keys as a grid (mod::kKeyWidth) is staged
// beside the queries: for each read by the row a float of each row that a tile of keys touches and
// each query, for each read by the column the columns of each query, as they are in memory.
constexpr bool kStagesGrid = mod::kRowReads + mod::kColumnReads > 0;
constexpr int kGridRows = mod::kKeyTile % mod::kKeyWidth == 0 ? mod::kKeyTile / mod::kKeyWidth
                                                              : mod::kKeyTile / mod::kKeyWidth + 2;
constexpr int kRowReadBytes = kGridRows * mod::kQueryTile * 4;
// Eight queries apart, threads find their columns in different banks.
constexpr int kColumnPitch = round_up_16(mod::kKeyWidth * mod::kColumnBytes) + 16;
constexpr int kColumnReadBytes = mod::kQueryTile * kColumnPitch;
constexpr int kGridBytes = // of a stage
    mod::kRowReads * kRowReadBytes + mod::kColumnReads * kColumnReadBytes;

// Those of blocks that stay come last.
constexpr int kOwnBarriers =
    14 + 2 * mod::kBiasStages + (mod::kDScoresStages == 1) + (mod::kQuerySums > 0);
constexpr int kBarriers = kOwnBarriers + (mod::kBlocksStay ? 8 : 0);

// Byte offsets in shared memory.
namespace at {
constexpr int kKeys = 0;
constexpr int kValues = kKeys + kPanels * kKeyPanel;
constexpr int kQueries = kValues + kValuePanels * kKeyPanel; // this and the next: two stages
constexpr int kDOut = kQueries + 2 * kPanels * kQueryPanel;
constexpr int kDScores = kDOut + 2 * kValuePanels * kQueryPanel;
constexpr int kWeights = kDScores + mod::kDScoresStages * kDScoresBytes;
constexpr int kQueryGradient = kWeights + 2 * kWeightBytes;
constexpr int kMatrixGradients = kQueryGradient;
constexpr int kBiases = kQueryGradient + (kSharesKeys     ? 0
                                          : kAddsMatrices ? kConsumers * kPartBytes
                                                          : kPiecesBytes);
constexpr int kOrigins = kBiases + mod::kBiasStages * kBiasTileBytes;
constexpr int kDeltas = kOrigins + 2 * mod::kQueryTile * 4; // like origins, two stages of floats
constexpr int kRows = kDeltas + 2 * mod::kQueryTile * 4;    // two stages of mod::Row
constexpr int kRowsBytes = kStagesRows ? (sizeof(mod::Row) + 7) / 8 * 8 : 0;
constexpr int kBarriers = kRows + 2 * mod::kQueryTile * kRowsBytes;
// Two stages of a word, where the mask has a map.
constexpr int kMappedTiles = kBarriers + sm90::kBarriers * 8;
constexpr int kGrid = round_up_16(kMappedTiles + (mod::kHasMap ? 16 : 0)); // two stages
constexpr int kSums = kGrid + 2 * kGridBytes;
constexpr int kQuerySums = kSums + kSumsBytes;
constexpr int kSumsEnd = kQuerySums + mod::kQuerySums * kQuerySumSlots * kQuerySumsBytes;
constexpr int kKeyTiles = round_up_16(kSumsEnd); // where blocks stay, one a slot
constexpr int kEnd = kKeyTiles + (mod::kBlocksStay ? 2 * 16 : 0);
constexpr int kSpareKeys = (kEnd + 1023) / 1024 * 1024;
} // namespace at
// Where blocks stay, the next tile's keys come while this one's are there, if there is room.
constexpr int kKeySlots =
    mod::kBlocksStay && at::kSpareKeys + kPanels * kKeyPanel <= mod::kSharedBytes ? 2 : 1;
static_assert(at::kEnd <= mod::kSharedBytes);
// The copy engine and matrices of eight rows find them by 16 bytes.
static_assert(at::kGrid % 16 == 0 && at::kSums % 16 == 0);
static_assert(!mod::kBlocksStay || (kTakesTurns && !kStagesGrid));

// Barriers by pairs: of the stages of a ring, or of the warpgroups.
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
    // Where there is one stage of dS: all have multiplied what is in it.
    __device__ Barrier d_scores_empty() const { return barrier(14 + 2 * mod::kBiasStages); }

    // Where sums of queries are gathered: those of a step are here.
    __device__ Barrier sums_full() const { return barrier(kOwnBarriers - 1); }

    // Which tile of queries a stage holds, where a map chooses them.
    __device__ unsigned mapped_tile(int stage) const { return base + at::kMappedTiles + 4 * stage; }

    // Where blocks stay: all have left a slot of keys, or the values; all queries of a tile of keys
    // are on their way; dv and dk are in shared memory; dv has left it.
    __device__ Barrier keys_empty(int slot) const { return barrier(kOwnBarriers + 1 + slot); }
    __device__ Barrier values_empty() const { return barrier(kOwnBarriers + 3); }
    __device__ Barrier queries_end() const { return barrier(kOwnBarriers + 4); }
    __device__ Barrier d_values_full() const { return barrier(kOwnBarriers + 5); }
    __device__ Barrier d_keys_full() const { return barrier(kOwnBarriers + 6); }
    __device__ Barrier d_values_read() const { return barrier(kOwnBarriers + 7); }

    // Which tile of keys a slot holds, and where it is, from the first slot.
    __device__ unsigned key_tile(int slot) const { return base + at::kKeyTiles + 16 * slot; }
    static __device__ int slot_offset(int slot) {
        return kKeySlots == 1 ? 0 : slot * (at::kSpareKeys - at::kKeys);
    }
    static __device__ unsigned slot_words(int slot) { // of products
        return static_cast<unsigned>(slot_offset(slot)) >> 4;
    }
    // Where a warpgroup's dk goes on its way to memory, and its dv: to its keys, and its values, or
    // where blocks stay to the stage of dS that it alone multiplies.
    __device__ unsigned d_keys(int warpgroup, int slot) const {
        return base + at::kKeys + slot_offset(slot) + warpgroup * (64 * kRowBytes);
    }
    __device__ unsigned d_values(int warpgroup) const {
        return mod::kBlocksStay ? base + at::kDScores + warpgroup * kDScoresBytes
                                : base + at::kValues + warpgroup * (64 * kRowBytes);
    }

    __device__ unsigned grid(int stage) const { return base + at::kGrid + stage * kGridBytes; }

    static __device__ mod::Row* rows(int stage) {
        return reinterpret_cast<mod::Row*>(shared_memory + at::kRows) + stage * mod::kQueryTile;
    }

    __device__ void initialise() const {
        keys().initialise(1);
        values().initialise(1);
        for (int i = 0; i < 2; ++i) {
            queries_full(i).initialise(1 + (kStagesRows ? 32 : 0) + (kStagesGrid ? 2 * 32 : 0));
            queries_empty(i).initialise(128 * kConsumers);
            d_out_full(i).initialise(1);
            d_out_empty(i).initialise(4 * kConsumers);
            piece_full(i).initialise(128);
            piece_empty(i).initialise(kAddsMatrices ? 32 : 1);
        }
        if constexpr (mod::kDScoresStages == 1) d_scores_empty().initialise(128 * kConsumers);
        if constexpr (mod::kQuerySums > 0) sums_full().initialise(128 * kConsumers);
        for (int i = 0; i < mod::kBiasStages; ++i) {
            biases_full(i).initialise(32);
            biases_empty(i).initialise(128 * kConsumers);
        }
        if constexpr (mod::kBlocksStay) initialise_for_next();
        publish_barriers();
    }

  private:
    // Of tiles of keys.
    __device__ void initialise_for_next() const {
        keys(1).initialise(1);
        for (int i = 0; i < 2; ++i)
            keys_empty(i).initialise(2 + (kStagesRows || kCopiesBiases));
        values_empty().initialise(4 * kConsumers);
        queries_end().initialise(1);
        d_values_full().initialise(128 * kConsumers);
        d_keys_full().initialise(128 * kConsumers);
        d_values_read().initialise(1);
    }

    __device__ Barrier barrier(int index) const { return {base + at::kBarriers + 8 * index}; }
};

// Panels of dv on its way to memory.
constexpr int kDValuesPanel = mod::kBlocksStay ? kQueryPanel : kKeyPanel;

// Numbered barriers; 0 is the block's.
// Where warpgroups take turns, a barrier for tiles of either: who need not wait for one tile's dS
// may be at the next's.
constexpr int kLastProductBarrier = 1, kWeightsBarrier = 2, kDScoresBarrier = 3; // and the next

// dS is in shared memory.
__device__ inline void meet_at_d_scores() {
    if constexpr (kReadsTile)
        synchronize_roles(kDScoresBarrier, kDScoresThreads);
    else
        synchronize(kDScoresBarrier, kDScoresThreads);
}
// Likewise, where warpgroups take turns: only whose turn it is waits.
__device__ inline void meet_at_d_scores(int step, bool waits) {
    const auto meet = [&](int barrier) {
        waits ? synchronize_roles(barrier, kDScoresThreads) : arrive(barrier, kDScoresThreads);
    };
    // Their numbers stay constants.
    step % 2 == 0 ? meet(kDScoresBarrier) : meet(kDScoresBarrier + 1);
}

} // namespace sm90
