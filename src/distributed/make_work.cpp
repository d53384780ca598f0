#include "distributed/make_work.h"

#include "distributed/cuda_work.h"
#include "distributed/host_work.h"
#include "runtime/buffers.h"

namespace flexc::distributed {

Result<std::shared_ptr<RankWork>> make_work(const detail::DistributedKernelState& kernel,
                                            const Communicator* communicator) {
    if (kernel.device_code == nullptr) return make_host_work();
    if (communicator != nullptr && !communicator->has_streams())
        return runtime::invalid(
            "this communicator's messages are in host memory, and the kernel is for a GPU: take "
            "nccl_communicator() or in_process_communicators()");
    return make_cuda_work(kernel.device_code);
}

} // namespace flexc::distributed
