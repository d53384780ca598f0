// Compares what all ranks must agree on, before anything else is sent.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/collectives.h"
#include "flexc/distributed.h"

namespace flexc::distributed {

// A named part of what is compared. The error names the first rank that differs from rank 0 and the
// part, or the first rank that failed; it is the same on every rank.
struct AgreedPart {
    std::string_view name; // "the program"
    std::string text;      // equal on all ranks
};

class Agreement {
  public:
    // Called by all ranks together, even those whose own preparation failed: `own` is its result.
    // Does not wait.
    static Agreement start(Communicator& communicator, const Result<void>& own,
                           std::span<const AgreedPart> agreed);
    // Returns the result, once all ranks have called start(). Called once.
    Result<void> finish();

  private:
    Agreement(Communicator& communicator, Result<void> own, std::span<const AgreedPart> agreed);

    Communicator* communicator_;
    Result<void> own_;
    std::vector<std::string_view> names_;
    std::optional<Result<Gathering>> gathering_; // of more ranks than one
};

inline Result<void> agree(Communicator& communicator, const Result<void>& own,
                          std::span<const AgreedPart> agreed) {
    return Agreement::start(communicator, own, agreed).finish();
}

} // namespace flexc::distributed
