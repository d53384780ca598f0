// What is fuzzed: targets, which take any bytes, and what turns good inputs into bad ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "random.h"

namespace flexc::fuzz {

using test::Random;
using Corpus = std::vector<std::string>;

struct Target {
    std::string_view name;
    std::string_view meaning;
    double cpu_seconds; // that one input may take in a release build
    Corpus (*corpus)();
    std::string (*mutate)(const std::string& input, const Corpus& corpus, Random& random);
    // Must hold for all bytes, and depends on nothing else.
    void (*run)(std::string_view input);
};

extern const Target kPrograms, kKernels, kIr, kTensors, kRequests, kEntries, kPacks, kCalls;
std::span<const Target* const> targets();

// Ends the process: a property does not hold.
[[noreturn]] void fail(const std::string& message);
inline void require(bool holds, std::string_view message) {
    if (!holds) fail(std::string(message));
}
// This input was taken, not refused: a run in which few are says little.
void count_accepted();
std::uint64_t accepted_count();

// Inputs never grow beyond this: a little more than the limit of a program's text.
inline constexpr std::size_t kMostBytes = 70'000;

// --- mutations ---------------------------------------------------------------------------------

// A few changes of bytes and of runs of bytes; some come from the rest of the corpus.
std::string mutate_bytes(const std::string& input, const Corpus& corpus, Random& random);
// A few changes of words, lines and brackets, so that much of the text stays a program.
std::string mutate_text(const std::string& input, const Corpus& corpus, Random& random);
// As text: around 2^31, 2^53, 2^63, the ends of f32 and f64, and what is no number.
std::string_view hostile_number(Random& random);

// Programs of the library, of the tests of errors, of the conformance table and of the goldens.
Corpus program_corpus();

// --- bytes as decisions ------------------------------------------------------------------------

// Takes decisions from an input, and zeros where it has ended.
class Bytes {
  public:
    explicit Bytes(std::string_view input) : rest_(input) {}
    bool empty() const { return rest_.empty(); }
    std::uint64_t number(std::size_t bytes = 8) {
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < bytes && !rest_.empty(); ++i) {
            value |= std::uint64_t{static_cast<unsigned char>(rest_.front())} << (8 * i);
            rest_.remove_prefix(1);
        }
        return value;
    }
    // Below count, which is at most 65,536.
    std::size_t below(std::size_t count) {
        return static_cast<std::size_t>(number(count > 256 ? 2 : 1)) % count;
    }
    // Never at the end, so that loops end too.
    bool chance(int percent) { return !empty() && below(100) < static_cast<std::size_t>(percent); }
    template <typename Container> const auto& pick(const Container& container) {
        return container[below(std::size(container))];
    }

  private:
    std::string_view rest_;
};

// A number that follows from the bytes, for what a target decides beside them.
std::uint64_t seed_of(std::string_view input);

} // namespace flexc::fuzz
