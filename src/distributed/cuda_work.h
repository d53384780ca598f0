// Work in a GPU's memory, in the order of streams.
#pragma once

#include <memory>

#include "distributed/tensor_work.h"
#include "flexc/options.h"

namespace flexc::distributed {

// The kernels of templates/ranks.cu on one device.
class DeviceCode;
// From the cache or the compiler.
Result<std::shared_ptr<const DeviceCode>> load_device_code(int device,
                                                           const CompileOptions& options);

Result<std::shared_ptr<RankWork>> make_cuda_work(std::shared_ptr<const DeviceCode> code);

} // namespace flexc::distributed
