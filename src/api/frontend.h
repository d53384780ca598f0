// The part of a compile that needs no device: text and options to a Mod.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flexc/compile.h"
#include "flexc/options.h"
#include "flexc/result.h"
#include "passes/mod.h"

namespace flexc::api {

// Options with defaults filled in, or what is wrong with them.
Result<CompileOptions> complete(CompileOptions options);

struct Front {
    ir::Program program;
    std::string warnings; // as a user reads them; empty when there are none
};
Result<Front> read_program(std::string_view text, const CompileOptions& options);
Result<passes::Mod> lower_program(ir::Program program, const CompileOptions& options);
// Both, for those who have nobody to tell the warnings.
Result<passes::Mod> lower_text(std::string_view text, const CompileOptions& options);

// Runs `body`; an exception, which would be a bug or a lack of memory, becomes an Error.
template <typename Body> auto guarded(Body&& body) -> decltype(body()) {
    try {
        return body();
    } catch (const std::bad_alloc&) {
        return Error{ErrorCode::limit, "out of memory"};
    } catch (const std::exception& exception) {
        return Error{ErrorCode::internal, exception.what()};
    }
}

} // namespace flexc::api
