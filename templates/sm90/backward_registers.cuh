// What each form of the fused backward does to need fewer registers. Most compute values again that
// a thread would otherwise keep from tile to tile: computed_again() and lane_again() hide from the
// compiler that these are the same.
#pragma once

#include "common/mask.cuh"
#include "sm90/backward_order.cuh"
#include "sm90/register_form.h"

namespace sm90 {

constexpr RegisterForm kRegisterForm = static_cast<RegisterForm>(mod::kSavesRegisters);

struct RegisterSaving {
    bool beside;          // the producer's warps save registers
    bool keys_again;      // consumers compute a tile's first keys, and if it is the first, again
    bool positions_again; // and a thread's first query and key
    bool places_again;    // and its place in its warp, from its lane, which is read again
    bool lane_again;      // the lane is read wherever it is used
    bool heads_again;     // the head is computed again, from its number over batch and heads
    bool modifies_in_parts;
    bool subtracts_apart;
    // The mask is evaluated while the products run, where only P needs it.
    bool evaluates_mask_early;
};
constexpr __device__ RegisterSaving register_saving() {
    constexpr bool kIsLongTile = mod::kQueryTile == 128;
    RegisterSaving saves{};
    saves.beside = kRegisterForm >= RegisterForm::saves_beside;
    saves.subtracts_apart = kRegisterForm == RegisterForm::subtracts_apart && kFolds;
    saves.keys_again = kRegisterForm >= RegisterForm::saves_all && !saves.subtracts_apart;
    // Kernels with a mask alone would spill with it.
    saves.positions_again = saves.keys_again && mod::kHasScoreMod;
    saves.modifies_in_parts = (kRegisterForm == RegisterForm::modifies_in_parts ||
                               kRegisterForm == RegisterForm::modifies_by_pairs) &&
                              mod::kHasScoreMod;
    // With long tiles, kernels whose scores are modified in parts spill more with it.
    saves.places_again = saves.positions_again && !(saves.modifies_in_parts && kIsLongTile);
    // Kernels with a mask alone spill more with it if tiles are short, others if they are long.
    saves.lane_again = mod::kHasScoreMod ? saves.modifies_in_parts && !kIsLongTile
                                         : saves.keys_again && kIsLongTile;
    saves.heads_again =
        saves.keys_again && mod::TabulatedVectors::kByDistance > 0 && !mod::kPersistent;
    saves.evaluates_mask_early = !mod::ReadGradients::kComeFromElements && !saves.places_again;
    return saves;
}
constexpr RegisterSaving kSaves = register_saving();
// Pairs of queries for which scores are modified at once, where they are in parts.
constexpr int kPairsAtOnce = kRegisterForm == RegisterForm::modifies_by_pairs ? 1 : kFolds ? 2 : 4;

// Whether half of the sums over a query's keys are exchanged between lanes at once, where registers
// are shortest, instead of all of them while the next products run.
constexpr bool kExchangesEarly = kAtOnce;

// Whether a mask needs more registers than products leave. Bands without a prefix and masks that
// compare one word of the query with one of the key (documents) do not; where warpgroups share keys
// there is room. A mask that made a kernel spill counts as long.
constexpr bool kMaskIsLong =
    !kSharesKeys && !mod::kHasScoreMod &&
    (kSaves.keys_again ||
     (Mask::kIsComparison ? has(Clamp::last_least) && mod::kQueryTile < 128
                          : sizeof(mod::Row) != sizeof(int) || sizeof(mod::Column) != sizeof(int)));
// Such a mask is evaluated before dP's product takes registers, unless long tiles and reads for
// each element would delay that product.
constexpr bool kEvaluatesMaskBetween =
    kMaskIsLong && !(mod::Mask::kReadsElements && mod::kQueryTile == 128);

// Registers of a thread: setmaxnreg moves them from the producer's warpgroup to the consumers,
// within what the launch gave the block. A producer that only loads can spare most; one that copies
// or adds dense biases, sums over a 2-D key index, tables or grids, computes values of rows, or is
// persistent needs more of its own. Without sums of dq, dk and dv, consumers can spare most.
constexpr bool kSparesRegisters = mod::kQueryTile < 128 && mod::kHeadDim + mod::kHeadDimV <= 192;
constexpr bool kModifiesLongTiles =
    mod::kQueryTile == 128 && mod::kHasScoreMod && !(kStagesRows && mod::ScoreDerivative::kIsOne);
constexpr bool kNeedsRegisters =
    kAtOnce ? !kAddsBiasGradients && !kSaves.beside
            : kAlternatesDq && (!kHoldsQueryGradient || kModifiesLongTiles) &&
                  !mod::Mask::kHasBlockMask && !mod::kPersistent && !kMaskIsLong &&
                  !(kSaves.beside && kStagesRows && __is_empty(mod::Column));
constexpr bool kSumsElements = (mod::TableGradients::kCount > 0 && !kSumsEntries) ||
                               (mod::ShiftedGradients::kCount > 0) ||
                               mod::GridGradients::kPlaces > 0;
constexpr int kProducerRegisters =
    kAreAlone && kSumsEntries                                                          ? 56
    : kAreAlone                                                                        ? 104
    : kNeedsRegisters && !kCopiesBiases && !kSumsElements                              ? 24
    : kSaves.beside && (kAddsBiasGradients || (kStagesRows && kSparesRegisters))       ? 56
    : mod::TableGradients::kOfKinds >= 0 && mod::kQueryTile < 128 && !kSparesRegisters ? 56
    : !kSumsIndex2d && !(kSumsElements && (kSparesRegisters || kSharesKeys))           ? 40
    : kSparesRegisters                                                                 ? 72
                                                                                       : 56;
constexpr int kConsumerRegisters = (504 - kProducerRegisters) / 16 * 8;

// Returns the thread's lane: the one that it kept, or the lane read again.
__device__ inline int lane_of_form(int kept) { return kSaves.lane_again ? lane_again() : kept; }

} // namespace sm90
