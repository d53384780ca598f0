// What all ranks must agree on, compared before anything else travels.
#pragma once

#include <string>
#include <string_view>

#include "flexc/distributed.h"

namespace flexc::distributed {

// Called by all ranks together, also by those whose own preparation failed: `own` is its result.
// Each part of `agreed` has a name; the error names the first rank that differs from rank 0, and
// the part, or the first rank that failed, and is the same on every rank.
struct AgreedPart {
    std::string_view name; // "the program"
    std::string text;      // equal on all ranks
};
Result<void> agree(Communicator& communicator, const Result<void>& own,
                   std::span<const AgreedPart> agreed);

} // namespace flexc::distributed
