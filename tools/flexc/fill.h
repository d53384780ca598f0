// Made-up tensor contents for benchmarks and pictures: SPEC is normal:STD, uniform:LO:HI, index:N,
// segments:LEN, list:X:Y:... or const:X.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flexc/compile.h"

namespace flexc::cli {

struct FillSpec {
    enum class Kind { normal, uniform, index, segments, list, constant };
    Kind kind = Kind::normal;
    double first = 0.1, second = 0;
    std::vector<double> list = {}; // again from its start when it ends
};

FillSpec parse_fill(const std::string& text); // a usage error when it is none of these

// Integers index something or name something: zero is the only value that is always right.
std::string default_fill(const BufferInfo& buffer);

// A usage error, which names `what`, when it is no whole number from 1 to 2^30.
std::int64_t parse_count(const std::string& text, std::string_view what);
// Dims are numbers, or names that `sizes` has.
std::vector<std::int64_t> buffer_shape(const BufferInfo& buffer,
                                       const std::map<std::string, std::int64_t>& sizes);

// One number of this type, to nearest.
void store(std::byte* out, DType dtype, double value);

// segments counts along the last dimension. The same seed gives the same bytes.
std::vector<std::byte> make_contents(const FillSpec& spec, DType dtype,
                                     std::span<const std::int64_t> shape, std::uint64_t seed);

} // namespace flexc::cli
