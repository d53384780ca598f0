// A pack: a folder of complete entries that is shipped with a program, so that no compiler is
// needed where it runs. It is only read, and trusted because the user names it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "cache/digest.h"
#include "cache/entry_format.h"
#include "flexc/options.h"
#include "support/log.h"

namespace flexc::cache {

// Returns CacheOptions::pack, else FLEXC_PACK; empty if neither is set.
std::string pack_folder(const CacheOptions& options);

struct PackState {
    std::size_t kernels = 0; // of this version of flexc
    std::string problem;     // why there are none, for the user
};
PackState check_pack(const std::string& folder);

// Nothing when there is no pack, or no whole entry for this key in it.
std::optional<Entry> load_from_pack(const std::string& folder, const Key& key,
                                    const support::Log& log = {});

} // namespace flexc::cache
