// Text to tree. Never throws, never recurses deeper than kMaxNesting allows.
#pragma once

#include "dsl/ast.h"
#include "dsl/diagnostic.h"
#include "dsl/source.h"

namespace flexc::dsl {

inline constexpr int kMaxNesting = 256;

struct Parsed {
    Ast ast; // incomplete when diagnostics hold an error
    Diagnostics diagnostics;
};
Parsed parse(const Source& source);

} // namespace flexc::dsl
