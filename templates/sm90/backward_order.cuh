// Conditions that decide in which order the fused backward computes P, dS and its products: what a
// program's derivatives need, and what registers hold.
#pragma once

#include "sm90/backward_layout.cuh"

namespace sm90 {

// When the derivative of a score mod is computed. If it does not depend on the score: P while dP's
// product runs, the derivative afterwards. If it does, or both are costly: it is multiplied into P
// once P is packed for dv. If gradients of buffers need the score as well, or are of the terms of
// sums: after both products.
constexpr bool kAtOnce =
    mod::TermSums::kExist || kSumsEntries ||
    (mod::ReadGradients::kComeFromElements &&
     (mod::ScoreDerivative::kUsesScore || mod::ScoreDerivative::kPartialsUseScore));
constexpr bool kIsLong = kScoreQueries == 128;
constexpr bool kFolds = !kAtOnce && (mod::ScoreDerivative::kUsesScore ||
                                     (mod::ScoreDerivative::kIsCostly && !kIsLong));

// For 128 queries, registers cannot hold P both as floats and as packed fragments beside both
// products. So dS overwrites the floats before the fragments are multiplied; where that would spill
// more, or was not measured, dS is computed from the fragments in 16 bits.
constexpr bool kDifferentiatesFirst = kIsLong && !kAtOnce && !kAddsTiles && !kSumsIndex2d;
static_assert(!kIsLong || !kFolds);
constexpr bool kKeepsFloats = !kIsLong || kDifferentiatesFirst;

// Whether a thread has registers for dk, dv, all of a tile's dq and a warpgroup's dS at once.
constexpr bool kHoldsQueryGradient = (round_up_16(mod::kHeadDim) + round_up_16(mod::kHeadDimV) +
                                      kRowBlocks * round_up_16(mod::kHeadDim)) /
                                             2 +
                                         mod::kQueryTile / 4 <=
                                     160;
// Whether dv is finished first, which frees the registers of P's fragments for a mod's derivative.
constexpr bool kFinishesDvEarly =
    mod::kQueryTile == 128 && !kAtOnce &&
    (mod::ReadGradients::kComeFromElements || !mod::ScoreDerivative::kIsOne);

constexpr bool kOverlapsSums = kHoldsQueryGradient && !kFinishesDvEarly; // dk's and dq's products
// Whether what is added is dS, not what another derivative makes of it element by element.
constexpr bool kAddsScores = kAddsParts && mod::DenseBias::kGradientIsDScore;
static_assert((kParts == 1 || !kAddsBiasGradients || kAddsScores) && !(kAddsScores && kAtOnce));
static_assert(!kAddsTiles || mod::kDScoresStages == 2);

// Whether biases are needed after P are computed.
constexpr bool kHoldsBiases =
    kCopiesBiases && mod::DenseBias::kIsUsedByDerivatives && !kAtOnce && !kFolds;

} // namespace sm90
