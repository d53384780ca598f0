#include "cpu/loader.h"

#include <memory>
#include <mutex>

#include "support/dynlib.h"

namespace flexc::cpu {

namespace {

constexpr char kFileName[] = "libflexc_cpu.so";

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

// Beside the program or library first, so that a build never opens an installed copy of another
// version; the loader's own search comes last.
support::LibrarySearch search() {
    auto near =
        support::find_library({.name = "the CPU backend",
                               .exact_path = support::Variable::cpu_backend,
                               .patterns = {std::string("${ORIGIN}/") + kFileName,
                                            std::string("${ORIGIN}/../lib/") + kFileName,
                                            std::string("${ORIGIN}/../lib/*/") + kFileName,
                                            std::string("${ORIGIN}/../lib64/") + kFileName,
                                            std::string(FLEXC_INSTALL_LIBDIR "/") + kFileName},
                               .objection = objection});
    if (near || support::environment(support::Variable::cpu_backend)) return near;
    auto far = support::find_library(
        {.name = "the CPU backend", .sonames = {kFileName}, .objection = objection});
    far.attempts.insert(far.attempts.begin(), near.attempts.begin(), near.attempts.end());
    return far;
}

} // namespace

Result<const Backend*> backend() {
    static std::mutex mutex;
    static std::unique_ptr<const Backend> found;
    const std::lock_guard lock(mutex);
    if (found) return found.get();
    const support::LibrarySearch result = search();
    if (!result)
        return Error{ErrorCode::library_missing,
                     "the CPU backend was not found. Tried:\n" + result.describe()};
    auto fresh = std::make_unique<Backend>();
    fresh->table = table_of(*result.library);
    fresh->path = result.library->path();
    fresh->table->describe(
        {.write = [](void* user, const char* data,
                     std::size_t size) { static_cast<std::string*>(user)->append(data, size); },
         .user = &fresh->description});
    found = std::move(fresh);
    return found.get();
}

} // namespace flexc::cpu
