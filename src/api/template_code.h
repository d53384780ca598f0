// Machine code of a template that does not depend on a program.
#pragma once

#include <string>
#include <string_view>

#include "flexc/options.h"
#include "flexc/result.h"

namespace flexc::api {

// Returns a cubin for a device, from the cache or the compiler.
Result<std::string> compile_template(std::string_view path, int device,
                                     const CompileOptions& options);

} // namespace flexc::api
