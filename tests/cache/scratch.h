// A folder of its own for each test, and small helpers to damage what is in it.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cache/store.h"
#include "temporary_folder.h"

namespace flexc::test {

namespace fs = std::filesystem;

class Scratch : public TemporaryFolder {
  public:
    CacheOptions options(std::uint64_t max_bytes = 1 << 30) const {
        CacheOptions result;
        result.directory = cache().string();
        result.max_bytes = max_bytes;
        return result;
    }
    fs::path cache() const { return path() / "cache"; }
    std::vector<fs::path> files() const {
        std::vector<fs::path> result;
        if (fs::exists(cache()))
            for (const auto& item : fs::directory_iterator(cache()))
                result.push_back(item.path());
        return result;
    }
};

inline std::string read_file(const fs::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

inline void write_file(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::string pattern_bytes(std::size_t size, unsigned seed) {
    std::string bytes(size, '\0');
    for (auto& byte : bytes) {
        seed = seed * 1664525u + 1013904223u;
        byte = static_cast<char>(seed >> 24);
    }
    return bytes;
}

inline cache::Key key_of(std::uint64_t number) {
    return cache::KeyBuilder().field("test", number).finish();
}
inline const cache::Key kKey = key_of(1);
// What an attacker would like to have: another text under the digest of kKey.
inline const cache::Key kForged{key_of(1001).text, kKey.digest};

// Counts what is logged at each level.
struct Listener {
    int warnings = 0;
    std::string last_warning;
    support::Log log() {
        return support::Log({[](void* user, LogLevel level, std::string_view text) {
                                 auto& self = *static_cast<Listener*>(user);
                                 if (level != LogLevel::warning) return;
                                 ++self.warnings;
                                 self.last_warning = text;
                             },
                             this});
    }
};

} // namespace flexc::test
