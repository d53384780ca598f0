// Machine code of a template that no program is in.
#pragma once

#include <string>
#include <string_view>

#include "flexc/options.h"
#include "flexc/result.h"

namespace flexc::api {

// A cubin for a device, from the cache or the compiler.
Result<std::string> compile_template(std::string_view path, int device,
                                     const CompileOptions& options);

} // namespace flexc::api
