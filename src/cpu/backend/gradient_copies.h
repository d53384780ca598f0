// Where the lanes of a backward pass add captured gradients: straight into the caller's tensor
// where no two lanes can meet, else into copies of their own that are summed in a fixed order.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/backend/arena.h"
#include "cpu/backend_table.h"

namespace flexc::cpu {

class GradientCopies {
  public:
    // Loop variables over which work may be split between lanes. Buffers so large that copies would
    // not do are left to the variables that separate them.
    static std::uint32_t allowed_split(const Launch& launch);

    // `split`: the variables that lanes are split by; 0 when there is one lane.
    GradientCopies(const Launch& launch, std::uint32_t split, int lanes, Arena& arena);

    // Zeroes the copies of a lane and gives it arguments that point at them.
    const std::uint64_t* begin_lane(int lane) const;
    // After all lanes: adds copies into the caller's tensors.
    void finish() const;

  private:
    struct Copy {
        const GradientTarget* target;
        std::int64_t elements;
        float* data; // [lanes][elements]; null when lanes write to the target
    };
    const Launch& launch_;
    int lanes_;
    std::uint64_t* words_; // [lanes][word_count]
    std::vector<Copy> copies_;
};

} // namespace flexc::cpu
