// Work in host memory, complete when a function returns.
#pragma once

#include <memory>

#include "distributed/tensor_work.h"

namespace flexc::distributed {

std::shared_ptr<RankWork> make_host_work();

} // namespace flexc::distributed
