// A pack: a folder of whole entries that travels with a program, so that where it runs no compiler
// is needed. It is only read, and trusted because its user names it.
#pragma once

#include <optional>
#include <string>

#include "cache/digest.h"
#include "cache/entry_format.h"
#include "flexc/options.h"
#include "support/log.h"

namespace flexc::cache {

// CacheOptions::pack, else FLEXC_PACK; empty when there is none.
std::string pack_folder(const CacheOptions& options);

// Nothing when there is no pack, or no whole entry for this key and source in it.
std::optional<Entry> load_from_pack(const std::string& folder, const Digest& key,
                                    const Digest& source, const support::Log& log = {});

} // namespace flexc::cache
