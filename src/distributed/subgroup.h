// Some ranks of a communicator, as a communicator of their own.
#pragma once

#include <memory>
#include <vector>

#include "flexc/distributed.h"

namespace flexc::distributed {

// members: ranks of the whole, including the caller's; the same list on each of them. Errors name
// ranks of the whole.
std::shared_ptr<Communicator> subgroup(std::shared_ptr<Communicator> whole,
                                       std::vector<int> members);

} // namespace flexc::distributed
