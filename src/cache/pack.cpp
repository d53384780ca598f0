#include "cache/pack.h"

#include <filesystem>
#include <system_error>

#include "support/env.h"
#include "support/files.h"

namespace flexc::cache {

std::string pack_folder(const CacheOptions& options) {
    if (!options.pack.empty()) return options.pack;
    return support::environment(support::Variable::pack).value_or("");
}

PackState check_pack(const std::string& folder) {
    PackState state;
    std::error_code failure;
    std::filesystem::directory_iterator file(folder, failure), end;
    for (; !failure && file != end; file.increment(failure))
        if (is_entry_name(file->path().filename().string(), kEntryVersion)) ++state.kernels;
    if (failure)
        state.problem = failure.message();
    else if (state.kernels == 0)
        state.problem = "no kernel of this version of flexc is in it";
    return state;
}

std::optional<Entry> load_from_pack(const std::string& folder, const Key& key,
                                    const support::Log& log) {
    if (folder.empty()) return std::nullopt;
    const std::string path = folder + "/" + entry_name(key.digest);
    const support::FileRead file = support::read_file(path, kMaxEntryBytes);
    if (file.absent) {
        log.info("{} has no kernel {}: it was made for another program, GPU or version of flexc",
                 folder, key.digest.hex());
        return std::nullopt;
    }
    if (!file.problem.empty()) {
        log.warn("{} is not used: {}", path, file.problem);
        return std::nullopt;
    }
    auto entry = decode_entry(file.bytes, key);
    // A pack is not ours to repair; the user must know why the compiler runs.
    if (!entry) log.warn("{} is damaged and is not used", path);
    return entry;
}

} // namespace flexc::cache
