// The work of a kernel's device.
#pragma once

#include <memory>

#include "distributed/state.h"

namespace flexc::distributed {

// communicator: that messages will go by, which has to reach the device's memory; null: none.
Result<std::shared_ptr<RankWork>> make_work(const detail::DistributedKernelState& kernel,
                                            const Communicator* communicator);

} // namespace flexc::distributed
