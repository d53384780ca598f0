// What a device could do at best, from its maker's data sheet.
#pragma once

#include <optional>

#include "flexc/types.h"

namespace flexc::cli {

// Dense, in 10^12 operations a second; absent for devices that are not in the table.
std::optional<double> peak_tera_operations(Device device, DType dtype);

} // namespace flexc::cli
