// The value and the gradients of a score_mod at one element, in double, by a tape that is walked
// back: what PyTorch's autograd does. Values and rules are written out here from
// docs/language.md, so that they share no mistake with ops.def, the interpreter or derive.cpp.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/interp.h"
#include "ir/program.h"

namespace flexc::test {

// d score_mod / d (what one read gave), where it did not read outside; in the term of a sum, one
// for each value of the counter.
struct ReadSlope {
    ir::NodeId read = ir::kNoNode;
    std::vector<std::int64_t> indices;
    double slope = 0;
};

struct TapeResult {
    double score = 0;             // modified
    double d_score = 0;           // d score_mod / d score
    double d_score_terms = 0;     // magnitudes of what that is the sum of
    double largest = 0;           // magnitude of a real value on the way
    std::vector<ReadSlope> reads; // of grad buffers
    // The least distance, for its size, of a value from where its function has a kink or a step,
    // but for those that are on one; infinite where there is none.
    double margin = 0;
    bool has_tie = false;         // some value is on a kink or a step
    bool divides_by_zero = false; // so that the sign of a zero decides
    bool is_finite = true;        // the score and all slopes
};

// What is rounded to f32: nothing, what the text computes from constants alone, or every value, of
// which slopes then follow as kernels compute them: a measure of what f32 loses.
enum class Rounding : std::uint8_t { nothing, constants, values };

TapeResult differentiate(const ir::Program& program, const ir::Environment& environment,
                         Rounding rounding = Rounding::constants);

} // namespace flexc::test
