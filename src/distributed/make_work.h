// Makes the RankWork of a kernel's device.
#pragma once

#include <memory>

#include "distributed/state.h"

namespace flexc::distributed {

// communicator: the one for the messages, which must be able to reach the device's memory; null for
// none.
Result<std::shared_ptr<RankWork>> make_work(const detail::DistributedKernelState& kernel,
                                            const Communicator* communicator);

} // namespace flexc::distributed
