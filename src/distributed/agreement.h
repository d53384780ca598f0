// What all ranks must agree on, compared before anything else travels.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "distributed/collectives.h"
#include "flexc/distributed.h"

namespace flexc::distributed {

// Each part of what is agreed on has a name; the error names the first rank that differs from rank
// 0, and the part, or the first rank that failed, and is the same on every rank.
struct AgreedPart {
    std::string_view name; // "the program"
    std::string text;      // equal on all ranks
};

class Agreement {
  public:
    // Called by all ranks together, also by those whose own preparation failed: `own` is its
    // result. Waits for nobody.
    static Agreement start(Communicator& communicator, const Result<void>& own,
                           std::span<const AgreedPart> agreed);
    // Once: what it came to, when all ranks have started theirs.
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
