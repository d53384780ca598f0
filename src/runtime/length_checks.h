// Checks that arrays of lengths share. Messages name the array and what was expected.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "flexc/kernel.h"
#include "flexc/result.h"

namespace flexc::runtime {

using Numbers = std::span<const std::int32_t>;

// An array of lengths: its name, and its members for host memory and for device memory.
struct LengthArray {
    std::string_view name;
    Numbers Lengths::* on_host;
    TensorView LengthTensors::* on_device;
};
inline constexpr std::array kLengthArrays = {
#define FLEXC_LENGTH_ARRAY(name, dims) LengthArray{#name, &Lengths::name, &LengthTensors::name},
#include "common/lengths.def"
};

// Checks the array's length; that it is not given; that its numbers are not negative and never
// decrease.
Result<void> check_count(std::string_view name, Numbers numbers, std::int64_t expected);
Result<void> check_absent(std::string_view name, Numbers numbers, std::string_view reason);
Result<void> check_ascending(std::string_view name, Numbers numbers);

} // namespace flexc::runtime
