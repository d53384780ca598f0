// Where the parts of a backward pass add captured gradients: straight into the caller's tensor
// where no two parts can meet, else into copies of their own that are summed in a fixed order. What
// the parts are is decided by sizes alone, never by threads, so that sums have the same bits on any
// number of them.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cpu/backend/arena.h"
#include "cpu/backend_table.h"

namespace flexc::cpu {

// Loop variables over which work may be split, and how many streams of work may have copies of
// captured gradients.
struct GradientSplit {
    std::uint32_t variables = kSeparatesB | kSeparatesHKv | kSeparatesKv;
    std::int64_t streams = 1;
};

class GradientCopies {
  public:
    // `units`: how many parts the work has when split over some variables.
    static GradientSplit choose(const Launch& launch,
                                const std::function<std::int64_t(std::uint32_t variables)>& units);

    // `split`: the variables by which streams differ.
    GradientCopies(const Launch& launch, std::uint32_t split, std::int64_t streams, int threads,
                   Arena& arena);

    // Zeroes the copies of a stream and gives it arguments that point at them.
    const std::uint64_t* begin(std::int64_t stream) const;
    // After all streams: adds copies into the caller's tensors.
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
