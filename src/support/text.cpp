#include "support/text.h"

namespace flexc {

std::string format_text(fmt::string_view text, fmt::format_args arguments) {
    return fmt::vformat(text, arguments);
}

} // namespace flexc
