// Output files that are whole or not there at all.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "flexc/result.h"

namespace flexc::cli {

// `parts` one after another. The new file takes the name of the old only when all of it is on the
// disk; until then it has no name, so that a command that is killed leaves nothing. Links are
// followed. Devices and pipes are written as they are.
Result<void> write_whole_file(const std::string& path, std::span<const std::string_view> parts);

// Why `path` cannot be written, before the work is done; checked again by write_whole_file.
Result<void> check_writable(const std::string& path);

} // namespace flexc::cli
