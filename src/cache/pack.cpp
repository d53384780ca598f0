#include "cache/pack.h"

#include <fstream>
#include <iterator>

#include "support/env.h"

namespace flexc::cache {

std::string pack_folder(const CacheOptions& options) {
    if (!options.pack.empty()) return options.pack;
    return support::environment(support::Variable::pack).value_or("");
}

std::optional<Entry> load_from_pack(const std::string& folder, const Digest& key,
                                    const Digest& source, const support::Log& log) {
    if (folder.empty()) return std::nullopt;
    const std::string path = folder + "/" + entry_name(key);
    std::ifstream file(path, std::ios::binary);
    if (!file) {
        log.info("{} has no kernel {}: it was made for another program, GPU or version of flexc",
                 folder, key.hex());
        return std::nullopt;
    }
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    auto entry = decode_entry(bytes, key, source);
    // Not healed, as it is not ours to write; the user has to know why the compiler runs.
    if (!entry) log.warn("{} is damaged and is not used", path);
    return entry;
}

} // namespace flexc::cache
