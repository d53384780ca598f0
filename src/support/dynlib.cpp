#include "support/dynlib.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <dlfcn.h>
#include <glob.h>
#include <link.h>

#include "support/files.h"

namespace flexc::support {

namespace {

constexpr int kOpenMode = RTLD_LAZY | RTLD_LOCAL;

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

std::string folder_of(std::string_view path) {
    const auto slash = path.rfind('/');
    if (slash == std::string_view::npos) return ".";
    return std::string(path.substr(0, std::max<std::size_t>(slash, 1)));
}

std::string path_of(void* handle, const std::string& asked) {
    link_map* map = nullptr;
    if (::dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && map != nullptr &&
        map->l_name != nullptr && *map->l_name != '\0')
        return map->l_name;
    return asked;
}

// Opening happens after the walk: the loader holds its lock during it.
std::vector<std::string> loaded_libraries(std::string_view prefix) {
    struct Walk {
        std::string_view prefix;
        std::vector<std::string> paths;
    } walk{prefix, {}};
    ::dl_iterate_phdr(
        [](dl_phdr_info* object, std::size_t, void* data) {
            auto& found = *static_cast<Walk*>(data);
            const std::string_view path = object->dlpi_name == nullptr ? "" : object->dlpi_name;
            if (file_name(path).starts_with(found.prefix)) found.paths.emplace_back(path);
            return 0;
        },
        &walk);
    return walk.paths;
}

// Escapes a folder's name, in which no character is a pattern.
std::string escape_for_glob(const std::string& path) {
    std::string result;
    for (const char c : path) {
        if (c == '*' || c == '?' || c == '[' || c == '\\') result += '\\';
        result += c;
    }
    return result;
}

// Nothing when a variable is not set.
std::optional<std::string> expand(const std::string& pattern) {
    std::string result;
    std::size_t at = 0;
    while (true) {
        const std::size_t open = pattern.find("${", at);
        const std::size_t close = open == std::string::npos ? open : pattern.find('}', open);
        if (close == std::string::npos) return result + pattern.substr(at);
        const std::string name = pattern.substr(open + 2, close - open - 2);
        const auto value =
            name == "ORIGIN" ? std::optional(own_directory()) : foreign_environment(name.c_str());
        if (!value) return std::nullopt;
        result += pattern.substr(at, open - at) + escape_for_glob(*value);
        at = close + 1;
    }
}

class Searcher {
  public:
    explicit Searcher(const LibraryQuery& query) : query_(query) {}

    LibrarySearch run() {
        if (query_.exact_path) {
            if (const auto path = environment(*query_.exact_path)) {
                attempt(*path, kOpenMode,
                        std::string(" (from ") + info(*query_.exact_path).name + ")");
                return std::move(search_);
            }
        }
        everywhere();
        return std::move(search_);
    }

  private:
    void everywhere() {
        if (!query_.loaded_prefix.empty())
            for (const auto& path : loaded_libraries(query_.loaded_prefix))
                if (attempt(path, kOpenMode | RTLD_NOLOAD, " (already loaded)")) return;
        for (const auto& soname : query_.sonames)
            if (attempt(soname, kOpenMode, "")) return;
        for (const auto& pattern : query_.patterns) {
            const auto expanded = expand(pattern);
            if (!expanded) {
                record(pattern, "skipped, the variable is not set");
                continue;
            }
            const auto paths = glob_newest_first(*expanded);
            if (paths.empty()) record(*expanded, "no such file");
            for (const auto& path : paths)
                if (attempt(path, kOpenMode, "")) return;
        }
    }

    bool attempt(const std::string& path, int mode, const std::string& note) {
        // The loader would wait for somebody to write to a pipe.
        if (const std::string what = path.find('/') == std::string::npos ? "" : special_file(path);
            !what.empty()) {
            record(path + note, "it is " + what + ", not a library");
            return false;
        }
        void* handle = ::dlopen(path.c_str(), mode);
        if (handle == nullptr) {
            const char* reason = ::dlerror();
            record(path + note, reason == nullptr ? "cannot be opened" : reason);
            return false;
        }
        DynamicLibrary library(handle, path_of(handle, path));
        std::string objection = query_.objection ? query_.objection(library) : std::string();
        if (!objection.empty()) {
            record(library.path() + note, std::move(objection));
            return false;
        }
        record(library.path() + note, "found");
        search_.library = std::move(library);
        return true;
    }

    void record(std::string path, std::string outcome) {
        search_.attempts.push_back({std::move(path), std::move(outcome)});
    }

    const LibraryQuery& query_;
    LibrarySearch search_;
};

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

} // namespace

void* DynamicLibrary::symbol(const char* name) const { return ::dlsym(handle_, name); }

std::string LibrarySearch::describe() const {
    std::string text;
    for (const auto& attempt : attempts) {
        if (!text.empty()) text += '\n';
        text += "  " + attempt.path + ": " + attempt.outcome;
    }
    return text;
}

LibrarySearch find_library(const LibraryQuery& query) { return Searcher(query).run(); }

bool version_less(std::string_view left, std::string_view right) {
    std::size_t i = 0;
    std::size_t j = 0;
    while (i < left.size() && j < right.size()) {
        if (!is_digit(left[i]) || !is_digit(right[j])) {
            if (left[i] != right[j]) return left[i] < right[j];
            ++i;
            ++j;
            continue;
        }
        const auto number = [](std::string_view text, std::size_t& at) {
            while (at < text.size() && text[at] == '0')
                ++at;
            const std::size_t start = at;
            while (at < text.size() && is_digit(text[at]))
                ++at;
            return text.substr(start, at - start);
        };
        const std::string_view a = number(left, i);
        const std::string_view b = number(right, j);
        if (a.size() != b.size()) return a.size() < b.size();
        if (a != b) return a < b;
    }
    return left.size() - i < right.size() - j;
}

std::vector<std::string> glob_newest_first(const std::string& pattern) {
    glob_t matches{};
    std::vector<std::string> paths;
    if (::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &matches) == 0)
        paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    ::globfree(&matches);
    std::sort(paths.begin(), paths.end(),
              [](const auto& a, const auto& b) { return version_less(b, a); });
    return paths;
}

std::string own_directory() {
    Dl_info object{};
    if (::dladdr(reinterpret_cast<void*>(&own_directory), &object) == 0 ||
        object.dli_fname == nullptr)
        return ".";
    const std::string_view path = object.dli_fname;
    // A program started through PATH is known by a bare name; the kernel knows where it is.
    char* resolved = path.find('/') == std::string_view::npos
                         ? ::realpath("/proc/self/exe", nullptr)
                         : ::realpath(object.dli_fname, nullptr);
    if (resolved == nullptr) return folder_of(path);
    const std::string folder = folder_of(resolved);
    ::free(resolved);
    return folder;
}

} // namespace flexc::support
