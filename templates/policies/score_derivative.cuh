// What is known of d score_mod / d score, and of what else a backward computes for each element.
#pragma once

namespace defaults {

struct ScoreDerivative {
    static constexpr bool kIsOne = false;
    static constexpr bool kUsesScore = false;        // it changes with the score
    static constexpr bool kPartialsUseScore = false; // so does a partial that elements compute
    // Much is computed for each element: tiles of every kind have one copy of it.
    static constexpr bool kIsWrittenOnce = false;
    // What a visible element gives is finite unless its whole row is not.
    static constexpr bool kIsHiddenByMaskAlone = false;
    // Something is read for each element beside the mask, so that positions are clipped.
    static constexpr bool kReadsElements = false;
};

} // namespace defaults
