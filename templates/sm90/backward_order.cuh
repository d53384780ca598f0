// In which order the fused backward computes P, dS and its products, by what a program's
// derivatives need and what registers hold.
#pragma once

#include "sm90/backward_layout.cuh"

namespace sm90 {

// What a score mod's derivative asks of the order of things. Where the derivative with respect to
// the score is the same for any score, P are computed under the product of values, and the
// derivative afterwards. Where only it needs the score, it is multiplied into the P when they
// have been packed. Where gradients of buffers need the score too, both MMAs come first.
constexpr bool kAtOnce =
    mod::kAddsGradients && (mod::kDerivativeUsesScore || mod::kPartialsUseScore);
constexpr bool kFolds = !kAtOnce && mod::kDerivativeUsesScore;

// Registers have no room for P of 128 queries as floats and as fragments beside both
// products. So dS takes the place of the floats before fragments are multiplied; or where that
// would spill more, or was not measured, dS is made of the fragments, which have 16 bits.
constexpr bool kIsLong = kScoreQueries == 128;
constexpr bool kDifferentiatesFirst = kIsLong && !kAtOnce && !kAddsTiles && !kSumsIndex2d;
static_assert(!kIsLong || !kFolds);
constexpr bool kKeepsFloats = !kIsLong || kDifferentiatesFirst;

// Registers for dk, dv, all of a tile's dq and a warpgroup's dS beside the rest of a thread's.
constexpr bool kHoldsQueryGradient = (round_up_16(mod::kHeadDim) + round_up_16(mod::kHeadDimV) +
                                      kRowBlocks * round_up_16(mod::kHeadDim)) /
                                             2 +
                                         mod::kQueryTile / 4 <=
                                     160;
// Fragments of P leave their registers to what a mod's derivative needs.
constexpr bool kFinishesDvEarly =
    mod::kQueryTile == 128 && !kAtOnce && (mod::kAddsGradients || !mod::kDerivativeIsOne);

constexpr bool kOverlapsSums = kHoldsQueryGradient && !kFinishesDvEarly; // of dk and all of dq
// Whether what is added is dS, not what another derivative makes of it element by element.
constexpr bool kAddsScores = kAddsParts && mod::kDenseBiasIsOfScores;
static_assert((kParts == 1 || !kAddsBiasGradients || kAddsScores) && !(kAddsScores && kAtOnce));
static_assert(!kAddsTiles || mod::kDScoresStages == 2);

// Whether biases are needed after P are computed.
constexpr bool kHoldsBiases = kCopiesBiases && mod::kDerivativesUseBias && !kAtOnce && !kFolds;

} // namespace sm90
