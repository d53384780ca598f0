// Text to a typed program: parse, resolve names (the program's own, then the library's), check
// types, inline functions. Every error of the language is found here or in dsl/.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dsl/diagnostic.h"
#include "flexc/options.h"
#include "ir/program.h"

namespace flexc::front {

struct Input {
    dsl::Source source;
    // Declarations of C++ callers, in addition to those in the text; declaring a name twice is an
    // error.
    std::vector<BufferDeclaration> buffers;
    std::vector<ParamDeclaration> params;
    Layout query_layout = Layout::dense, key_layout = Layout::dense;
    std::string mask_mod; // an expression; empty when the text has its own or none
    std::string sink;     // likewise
};

struct Output {
    std::optional<ir::Program> program; // absent when diagnostics hold an error
    dsl::Diagnostics diagnostics;       // warnings may be there with a program
    std::string rendered;               // all diagnostics as a user reads them
};

Output compile_text(const Input& input);

} // namespace flexc::front
