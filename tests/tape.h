// The value and the gradients of a score_mod at one element, in double, by a tape that is walked
// back: what PyTorch's autograd does. Values and rules are written out here from
// docs/language.md, so that they share no mistake with ops.def, the interpreter or derive.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <utility>
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

// The tape of one root of a program. Its entries are found once, and evaluated in as many
// environments as there are elements: what varies by row, once for a row.
class Tape {
  public:
    // Sums have as many terms as this environment says, in which the tape is evaluated too.
    Tape(const ir::Program& program, ir::NodeId root, const ir::Environment& environment,
         Rounding rounding = Rounding::constants);

    // Evaluates what changes with this environment; sizes, a request's lengths, params and buffers
    // are as they were.
    void evaluate(const ir::Environment& environment);
    bool boolean() const { return entries_[root_].boolean; }
    double real() const { return entries_[root_].real; }
    double margin() const; // TapeResult's

    // Finds slopes, where the tape was last evaluated.
    void walk_back();
    double d_score() const { return score_ ? entries_[*score_].adjoint : 0; }
    // Of a grad buffer; `position` is row-major.
    struct Read {
        std::uint32_t buffer;
        std::size_t position;
        double slope;
        bool is_outside;
    };
    std::size_t read_count() const { return reads_.size(); }
    Read read(std::size_t n) const;
    TapeResult result() const;

  private:
    // What a value changes with, from what changes least: loops over heads, their rows and keys.
    enum class Varies : std::uint8_t { never, by_head, by_row, by_element };

    struct Entry {
        ir::Op op;
        ir::NodeId node;
        std::size_t first = 0, count = 0; // in operands_
        Varies varies = Varies::never;
        bool is_constant = false; // of the text, and so in f32
        bool is_sought = false;   // its slope is a result
        bool has_slope = false;   // it is such a one, or is computed from one
        bool is_reached = false;
        bool is_outside = false;  // of a read
        bool is_rounded = false;  // by a function of which libraries have other last bits
        std::size_t position = 0; // of a read inside its buffer
        bool boolean = false;
        std::int64_t integer = 0;
        double real = 0;
        double adjoint = 0;
        double absolute = 0; // of all that the adjoint is the sum of
    };
    // What values that vary so met: TapeResult says what.
    struct Found {
        double margin = std::numeric_limits<double>::infinity();
        bool has_tie = false, divides_by_zero = false;
        bool is_rounded = false; // an operand of what is computed

        void divide_by(double x);
        void near(double distance);
        void near(double x, double y);
        void near_whole(double x);
    };
    struct Layout {
        std::vector<ir::NodeId> counters;
        std::map<std::pair<ir::NodeId, std::int64_t>, std::size_t> known = {};
    };

    static Varies of_leaf(ir::Op op);
    static std::array<std::int64_t, 3> head_of(const ir::Environment& environment);
    static std::array<std::int64_t, 2> row_of(const ir::Environment& environment);
    std::size_t record(Layout& layout, ir::NodeId id, std::int64_t counter);
    const Entry& operand(const Entry& entry, std::size_t i) const {
        return entries_[operands_[entry.first + i]];
    }
    bool any_is_rounded(const Entry& entry) const;
    void evaluate(Entry& entry);
    void compute(Entry& entry);
    void compute_leaf(Entry& entry, const ir::Node& node);
    void read(Entry& entry, const ir::Node& node);
    static void take(Entry& entry, const ir::Value<double>& value);
    void walk_back(const Entry& entry);
    void give(const Entry& entry, std::size_t i, double slope);

    const ir::Program* program_;
    const ir::Environment* environment_;
    std::array<std::int64_t, 3> head_; // what of the last environment varies by head
    std::array<std::int64_t, 2> row_;
    Rounding rounding_;
    std::vector<Entry> entries_; // operands first
    std::vector<std::size_t> operands_;
    std::array<std::vector<std::size_t>, 4> order_; // entries by what they vary with
    std::array<Found, 4> found_;
    std::vector<std::size_t> sloped_, reads_;
    std::optional<std::size_t> score_;
    std::size_t root_ = 0;
};

TapeResult differentiate(const ir::Program& program, const ir::Environment& environment,
                         Rounding rounding = Rounding::constants);

} // namespace flexc::test
