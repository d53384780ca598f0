// Opens shared libraries that may be absent, and reports where they were searched.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/env.h"

namespace flexc::support {

// Never closed: code pointers into it live in caches and exit handlers of unknown lifetime.
class DynamicLibrary {
  public:
    DynamicLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

    void* symbol(const char* name) const; // nullptr when there is none
    template <typename Function> bool symbol(const char* name, Function*& function) const {
        function = reinterpret_cast<Function*>(symbol(name));
        return function != nullptr;
    }
    // Where the loader found it; the name that was asked for if the loader does not say.
    const std::string& path() const { return path_; }

  private:
    void* handle_;
    std::string path_;
};

// Where to search, in the order of the members.
struct LibraryQuery {
    std::string name; // for messages: "NVRTC"
    // An exact path from the user. If set, nothing else is tried, and its failure is the answer.
    std::optional<Variable> exact_path;
    // Start of the file name of a copy that this process may have loaded already: "libnvrtc.so".
    std::string loaded_prefix;
    // Names for the loader's own search: "libnvrtc.so.13".
    std::vector<std::string> sonames;
    // Globs, of which the newest version is tried first. ${NAME} is an environment variable (the
    // pattern is skipped if it is not set) and ${ORIGIN} the folder of the code that flexc is in.
    std::vector<std::string> patterns;
    // Says why a library that opened will not do (too old, a symbol missing); "" accepts it.
    std::function<std::string(const DynamicLibrary&)> objection;
};

struct LibraryAttempt {
    std::string path;
    std::string outcome; // "found" or the reason why not
};

struct LibrarySearch {
    std::optional<DynamicLibrary> library;
    std::vector<LibraryAttempt> attempts; // all, in order

    explicit operator bool() const { return library.has_value(); }
    // One line per attempt, indented by two spaces.
    std::string describe() const;
};

LibrarySearch find_library(const LibraryQuery& query);

// Paths that match, the highest version first: numbers in names compare as numbers.
std::vector<std::string> glob_newest_first(const std::string& pattern);
bool version_less(std::string_view left, std::string_view right);

// The folder of the shared object or program that holds flexc's code.
std::string own_directory();

} // namespace flexc::support
