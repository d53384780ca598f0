// What the fused backward does to need fewer registers. The host compiles a kernel again with the
// next of these forms where it spilled; each is slower than the one before it, where that did not
// spill. Most of them compute again what a thread would keep from tile to tile: computed_again()
// and lane_again() hide from the compiler that it is the same.
#pragma once

#include "common/place.cuh"
#include "sm90/backward_order.cuh"

namespace sm90 {

enum class RegisterForm {
    keeps_all,
    // The producer's warps spilled: what they compute for queries comes in parts, which keep
    // nothing for the next, and the number of heads is found again.
    saves_beside,
    // The warps that multiply did. What takes a few instructions to find is found again: a thread's
    // place beside score mods, a tile's first keys, the head. What a tile shows is found when its
    // products have ended.
    saves_all,
    // Branches keep ptxas from modifying more scores at once than those of a few pairs of queries.
    modifies_in_parts
};
constexpr RegisterForm kRegisterForm = static_cast<RegisterForm>(mod::kSavesRegisters);

struct RegisterSaving {
    bool beside;     // in the producer's warps
    bool keys_again; // a tile's first keys and whether it is the first, in the warps that multiply
    bool positions_again; // a thread's first query and key
    bool places_again;    // and where it is in its warp, by asking for its lane
    bool lane_again;      // the lane is asked for wherever it is used
    bool heads_again;     // the head, from its number over batch and heads
    bool modifies_in_parts;
    bool looks_early; // what a tile shows is found out under its products, where P alone need it
};
constexpr __device__ RegisterSaving register_saving() {
    constexpr bool kIsLongTile = mod::kQueryTile == 128;
    RegisterSaving saves{};
    saves.beside = kRegisterForm >= RegisterForm::saves_beside;
    saves.keys_again = kRegisterForm >= RegisterForm::saves_all;
    // Masks would spill by it.
    saves.positions_again = saves.keys_again && mod::kHasScoreMod;
    saves.modifies_in_parts = kRegisterForm >= RegisterForm::modifies_in_parts && mod::kHasScoreMod;
    // With long tiles, branches spill more beside it.
    saves.places_again = saves.positions_again && !(saves.modifies_in_parts && kIsLongTile);
    // With short tiles, masks spill more by it; with long ones, scores.
    saves.lane_again = mod::kHasScoreMod ? saves.modifies_in_parts && !kIsLongTile
                                         : saves.keys_again && kIsLongTile;
    saves.heads_again = saves.keys_again && mod::kDistanceValues > 0 && !mod::kPersistent;
    saves.looks_early = !mod::kAddsGradients && !saves.places_again;
    return saves;
}
constexpr RegisterSaving kSaves = register_saving();
constexpr int kPairsAtOnce = kFolds ? 2 : 4; // where scores are modified in parts

// Sums of queries wait for the products that follow, under which lanes exchange them; half of them
// do not where registers are shortest.
constexpr bool kExchangesEarly = kAtOnce;

constexpr bool kMaskIsBand = !mod::kHasMask || (mod::kHasBand && mod::kBandIsExact);
// Whether what a mask needs is more than the registers beside products hold. Not bands, but for
// those with a prefix, nor masks of a word for each query and key, as documents have; where keys
// are shared there is room. A mask that spilled is long.
constexpr bool kMaskIsLong =
    !kSharesKeys && !mod::kHasScoreMod &&
    (kSaves.keys_again ||
     (kMaskIsBand ? has(Clamp::last_least) && mod::kQueryTile < 128
                  : sizeof(mod::Row) != sizeof(int) || sizeof(mod::Column) != sizeof(int)));
// Then what a tile shows is found out before dP's product, which takes registers. Not where tiles
// are long and reads for each element would hold that up.
constexpr bool kLooksBetween = kMaskIsLong && !(mod::kMaskReadsElements && mod::kQueryTile == 128);

// Registers of a thread; together no more than the launch gave the block. What is done at once
// needs more than the producer's warps can spare without words of their own in memory; those that
// copy and add dense biases, sum over a 2-D key index, compute what is added to rows, or go on to
// other keys can spare fewer; where dense biases or rows alone spilled, it was theirs.
constexpr bool kSparesRegisters = mod::kQueryTile < 128 && mod::kHeadDim + mod::kHeadDimV <= 192;
constexpr bool kModifiesLongTiles =
    mod::kQueryTile == 128 && mod::kHasScoreMod && !(kStagesRows && mod::kDerivativeIsOne);
constexpr bool kNeedsRegisters =
    kAtOnce ? !kAddsBiasGradients && !kSaves.beside
            : kAlternatesDq && (!kHoldsQueryGradient || kModifiesLongTiles) &&
                  !mod::kHasBlockMask && !mod::kPersistent && !kMaskIsLong &&
                  !(kSaves.beside && kStagesRows && __is_empty(mod::Column));
constexpr int kProducerRegisters =
    kNeedsRegisters && !kCopiesBiases && !mod::kSumsTables                       ? 24
    : kSaves.beside && (kAddsBiasGradients || (kStagesRows && kSparesRegisters)) ? 56
    : !kSumsIndex2d                                                              ? 40
    : kSparesRegisters                                                           ? 72
                                                                                 : 56;
constexpr int kConsumerRegisters = (504 - kProducerRegisters) / 16 * 8;

// A thread's lane, which it has kept.
__device__ inline int lane_of_form(int kept) { return kSaves.lane_again ? lane_again() : kept; }

} // namespace sm90
