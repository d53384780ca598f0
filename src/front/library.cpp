#include "front/library.h"

#include <algorithm>
#include <vector>

#include "support/embedded.h"

namespace flexc::front {

namespace {

constexpr std::string_view kTitle = "# ", kHeading = "## ", kNextHeading = "\n## ";

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

std::string_view before_colon(std::string_view text) { return text.substr(0, text.find(": ")); }

// The text without the blank lines at its end, up to and with the last newline.
std::string_view without_blank_end(std::string_view text) {
    while (text.ends_with("\n\n"))
        text.remove_suffix(1);
    return text;
}

void add_page(const embedded::EmbeddedFile& file, std::vector<LibraryMod>& mods) {
    LibraryMod mod;
    mod.group = file.path.substr(0, file.path.find('/'));
    mod.page = before_colon(first_line(file.text).substr(kTitle.size()));
    std::size_t begin = file.text.find(kNextHeading);
    while (begin != std::string_view::npos) {
        const std::size_t end = file.text.find(kNextHeading, begin + 1);
        mod.text = without_blank_end(file.text.substr(begin + 1, end - begin));
        const std::string_view heading = first_line(mod.text).substr(kHeading.size());
        mod.name = before_colon(heading);
        mod.summary = heading.substr(std::min(mod.name.size() + 2, heading.size()));
        mods.push_back(mod);
        begin = end;
    }
}

} // namespace

std::span<const LibraryMod> library() {
    static const std::vector<LibraryMod> mods = [] {
        std::vector<LibraryMod> all;
        for (const embedded::EmbeddedFile& file : embedded::library())
            add_page(file, all);
        return all;
    }();
    return mods;
}

const LibraryMod* find_library_mod(std::string_view name) {
    const std::span<const LibraryMod> mods = library();
    const auto found = std::find_if(mods.begin(), mods.end(),
                                    [&](const LibraryMod& mod) { return mod.name == name; });
    return found == mods.end() ? nullptr : &*found;
}

} // namespace flexc::front
