// The part of a compile that needs no device: text and options to a Mod.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flexc/compile.h"
#include "flexc/options.h"
#include "flexc/result.h"
#include "passes/mod.h"
#include "support/guarded.h"

namespace flexc::api {

// Returns the options with defaults filled in, or what is wrong with them.
Result<CompileOptions> complete(CompileOptions options);

struct Front {
    dsl::Source source;
    ir::Program program;
    std::string warnings; // as a user reads them; empty when there are none
};
Result<Front> read_program(std::string_view text, const CompileOptions& options);
Result<passes::Mod> lower_program(Front front, const CompileOptions& options);
// Both steps, for callers that do not report warnings.
Result<passes::Mod> lower_text(std::string_view text, const CompileOptions& options);

} // namespace flexc::api
