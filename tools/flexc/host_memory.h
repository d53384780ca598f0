// Memory of this machine.
#pragma once

#include <cstdint>
#include <string_view>

#include "flexc/result.h"

namespace flexc::cli {

// An error where so many bytes more are not free: the system promises memory that it does not have,
// and ends whoever uses it.
Result<void> check_host_memory(std::uint64_t bytes, std::string_view of_what);

} // namespace flexc::cli
