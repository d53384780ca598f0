// Policy of d score_mod / d score, and of what else a backward computes for each element.
#pragma once

namespace defaults {

struct ScoreDerivative {
    static constexpr bool kIsOne = false;
    static constexpr bool kUsesScore = false;        // the derivative depends on the score
    // Each element computes much for it, but not from the score, and no buffer has a gradient.
    static constexpr bool kIsCostly = false;
    static constexpr bool kPartialsUseScore = false; // a read's partial depends on it
    // Whether the code of an element is so long that tiles of every kind share one copy of it.
    static constexpr bool kIsWrittenOnce = false;
    // Whether what a visible element gives is finite unless its whole row is not.
    static constexpr bool kIsHiddenByMaskAlone = false;
    // Whether memory is read for each element beside the mask, so that positions are clipped.
    static constexpr bool kReadsElements = false;
};

} // namespace defaults
