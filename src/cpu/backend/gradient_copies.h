// Where the parts of a backward pass add captured gradients: directly to the caller's tensor if no
// two parts can meet, else to copies that are summed in a fixed order. The parts depend on sizes
// only, never on threads, so that sums have the same bits for any number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cpu/backend_table.h"
#include "support/arena.h"

namespace flexc::cpu {

// Loop variables over which work may be split, and how many streams of work may have copies of
// captured gradients.
struct GradientSplit {
    std::uint32_t variables = kSeparatesB | kSeparatesHKv | kSeparatesKv;
    std::int64_t streams = 1;
};

class GradientCopies {
  public:
    // units: the number of parts when the work is split over some variables.
    static GradientSplit choose(const Launch& launch,
                                const std::function<std::int64_t(std::uint32_t variables)>& units);

    // split: the variables by which streams differ.
    GradientCopies(const Launch& launch, std::uint32_t split, std::int64_t streams, int threads,
                   support::Arena& arena);

    // Zeroes the copies of a stream and gives it arguments that point at them.
    const std::uint64_t* begin(std::int64_t stream) const;
    // Called after all streams: adds the copies to the caller's tensors.
    void finish() const;

  private:
    struct Copy {
        const GradientTarget* target;
        std::int64_t elements;
        float* data; // [streams][elements]; null when streams write to the target
    };
    const Launch& launch_;
    std::int64_t streams_;
    int threads_;
    std::uint64_t* words_; // [streams][word_count]
    std::vector<Copy> copies_;
};

} // namespace flexc::cpu
