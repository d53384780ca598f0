#include "distributed/nccl_api.h"

#include <vector>

#include "support/dynlib.h"
#include "support/text.h"

namespace flexc::distributed {

namespace {

std::string bind(const support::DynamicLibrary& library, NcclApi& api) {
// NOLINTBEGIN(bugprone-macro-parentheses)
#define FLEXC_NCCL(member, name, parameters)                                                       \
    if (!library.symbol(name, api.member))                                                         \
        return std::string("has no ") + name + ": version 2.18 is the least";
    FLEXC_NCCL_FUNCTIONS(FLEXC_NCCL)
#undef FLEXC_NCCL
    // NOLINTEND(bugprone-macro-parentheses)
    if (!library.symbol("ncclGetErrorString", api.error_string) ||
        !library.symbol("ncclGetLastError", api.last_error))
        return "does not tell its errors";
    return "";
}

std::vector<std::string> search_patterns() {
    std::vector<std::string> patterns;
    for (const char* root : {"${VIRTUAL_ENV}", "${CONDA_PREFIX}", "${ORIGIN}/../..",
                             "${ORIGIN}/../../..", "/usr/local", "/usr", "${HOME}/.local"})
        for (const char* packages : {"lib/python3*/site-packages", "lib/python3*/dist-packages"})
            patterns.push_back(formatted("{}/{}/nvidia/nccl/lib/libnccl.so.2", root, packages));
    // flexc itself may be inside a wheel, next to NVIDIA's.
    for (const char* up : {"..", "../.."})
        patterns.push_back(formatted("${{ORIGIN}}/{}/nvidia/nccl/lib/libnccl.so.2", up));
    patterns.emplace_back("${CONDA_PREFIX}/lib/libnccl.so.2");
    return patterns;
}

Result<NcclApi> open_nccl() {
    NcclApi api;
    const support::LibrarySearch search = support::find_library(
        {.name = "NCCL",
         .exact_path = support::Variable::nccl,
         .loaded_prefix = "libnccl.so.2",
         .sonames = {"libnccl.so.2"},
         .patterns = search_patterns(),
         .objection = [&](const support::DynamicLibrary& library) { return bind(library, api); }});
    if (!search)
        return Error{ErrorCode::library_missing,
                     "NCCL (libnccl.so.2) was not found. Install it with `pip install "
                     "nvidia-nccl-cu13` or set FLEXC_NCCL to its path. Tried:\n" +
                         search.describe()};
    api.path = search.library->path();
    return api;
}

} // namespace

const Result<NcclApi>& nccl_api() {
    // Never destroyed: static objects may end their communicators while the process ends.
    static const auto& kApi = *new Result<NcclApi>(open_nccl());
    return kApi;
}

} // namespace flexc::distributed
