#include "cpu/loader.h"

#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support/dynlib.h"

namespace flexc::cpu {

namespace {

// The name with this version's interface, then the plain name, for a single copied file.
constexpr const char* kFileNames[] = {"libflexc_cpu.so." FLEXC_SOVERSION, "libflexc_cpu.so"};

std::vector<std::string> near_paths() {
    std::vector<std::string> paths;
    for (const std::string folder : {"${ORIGIN}/", "${ORIGIN}/../lib/", "${ORIGIN}/../lib/*/",
                                     "${ORIGIN}/../lib64/", FLEXC_INSTALL_LIBDIR "/"})
        for (const char* name : kFileNames)
            paths.push_back(folder + name);
    return paths;
}

const BackendTable* table_of(const support::DynamicLibrary& library) {
    const BackendTable* (*entry)() = nullptr;
    return library.symbol(kBackendSymbol, entry) ? entry() : nullptr;
}

std::string objection(const support::DynamicLibrary& library) {
    const BackendTable* table = table_of(library);
    if (table == nullptr) return std::string("has no function ") + kBackendSymbol;
    if (table->version != kBackendVersion)
        return "is of version " + std::to_string(table->version) + " of the interface, not " +
               std::to_string(kBackendVersion);
    if (table->arguments_bytes != sizeof(AttentionArguments))
        return "comes from another build: its arguments of kernels are not those of this library";
    return "";
}

// Looks beside the program or library first, so that a build never opens an installed copy of
// another version; the loader's own search comes last.
support::LibrarySearch search() {
    auto near = support::find_library({.name = "the CPU backend",
                                       .exact_path = support::Variable::cpu_backend,
                                       .patterns = near_paths(),
                                       .objection = objection});
    if (near || support::environment(support::Variable::cpu_backend)) return near;
    auto far = support::find_library({.name = "the CPU backend",
                                      .sonames = {std::begin(kFileNames), std::end(kFileNames)},
                                      .objection = objection});
    far.attempts.insert(far.attempts.begin(), near.attempts.begin(), near.attempts.end());
    return far;
}

} // namespace

Result<const Backend*> backend() {
    // Never destroyed: kernels may run while the process ends.
    static auto& mutex = *new std::mutex;
    static const Backend* found = nullptr;
    const std::lock_guard lock(mutex);
    if (found != nullptr) return found;
    const support::LibrarySearch result = search();
    if (!result)
        return Error{ErrorCode::library_missing,
                     "the CPU backend was not found. Tried:\n" + result.describe()};
    auto fresh = std::make_unique<Backend>();
    fresh->table = table_of(*result.library);
    fresh->path = result.library->path();
    Received description;
    fresh->table->describe(description.sink());
    if (description.lost) return out_of_memory();
    fresh->description = std::move(description.text);
    found = fresh.release();
    return found;
}

} // namespace flexc::cpu
