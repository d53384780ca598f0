#include "front/library.h"

#include <algorithm>
#include <vector>

#include "support/embedded.h"

namespace flexc::front {

namespace {

LibraryMod mod_of(const embedded::EmbeddedFile& file) {
    LibraryMod mod;
    const std::size_t slash = file.path.find('/');
    mod.group = file.path.substr(0, slash);
    mod.name = file.path.substr(slash + 1);
    mod.name.remove_suffix(std::string_view(".flex").size());
    mod.text = file.text;
    mod.summary = file.text.substr(0, file.text.find('\n'));
    mod.summary.remove_prefix(std::min(mod.summary.find_first_not_of("# "), mod.summary.size()));
    return mod;
}

} // namespace

std::span<const LibraryMod> library() {
    static const std::vector<LibraryMod> mods = [] {
        std::vector<LibraryMod> all;
        for (const embedded::EmbeddedFile& file : embedded::library())
            all.push_back(mod_of(file));
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
