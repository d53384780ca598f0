// Made-up tensor contents for benchmarks: SPEC is normal:STD, uniform:LO:HI, index:N, segments:LEN
// or const:X.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flexc/types.h"

namespace flexc::cli {

struct FillSpec {
    enum class Kind { normal, uniform, index, segments, constant };
    Kind kind = Kind::normal;
    double first = 0.1, second = 0;
};

FillSpec parse_fill(const std::string& text); // a usage error when it is none of these

// segments counts along the last dimension. The same seed gives the same bytes.
std::vector<std::byte> make_contents(const FillSpec& spec, DType dtype,
                                     std::span<const std::int64_t> shape, std::uint64_t seed);

} // namespace flexc::cli
