// Work in GPU memory, ordered by streams.
#pragma once

#include <memory>

#include "distributed/tensor_work.h"
#include "flexc/options.h"

namespace flexc::distributed {

// The kernels of templates/ranks.cu on one device.
class DeviceCode;
// Loads the kernels, from the cache or the compiler.
Result<std::shared_ptr<const DeviceCode>> load_device_code(int device,
                                                           const CompileOptions& options);

Result<std::shared_ptr<RankWork>> make_cuda_work(const std::shared_ptr<const DeviceCode>& code);

} // namespace flexc::distributed
