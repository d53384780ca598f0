#include "cuda/quote.h"

namespace flexc::cuda {

std::string quoted(std::string_view source) {
    std::string text;
    while (!source.empty()) {
        const std::size_t end = source.find('\n');
        std::string line(source.substr(0, end));
        source.remove_prefix(end == std::string_view::npos ? source.size() : end + 1);
        for (char& c : line)
            if (c == '\\' || static_cast<unsigned char>(c) < ' ') c = ' ';
        text += line.empty() ? "//\n" : "//     " + line + "\n";
    }
    return text.empty() ? text : "// The program:\n" + text;
}

} // namespace flexc::cuda
