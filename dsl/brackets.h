// Which brackets belong together, and which newlines they hide.
#pragma once

#include <vector>

#include "dsl/lexer.h"

namespace flexc::dsl {

// Sets has_partner. A bracket without a partner must not swallow the rest of the text's line ends.
// Braces are stronger than the others: a ')' never reaches over the '{' of its body.
void match_brackets(std::vector<Token>& tokens);
// Removes newlines inside () and [].
void drop_inner_newlines(std::vector<Token>& tokens);

} // namespace flexc::dsl
