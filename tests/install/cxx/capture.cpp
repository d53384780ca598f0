// The example of docs/serving.md that captures a step, which CMake cuts out of the page, with as
// much of the CUDA runtime and of a server as it names.
#include <flexc/flexc.h>

#include <span>
#include <string_view>

enum cudaError_t { cudaSuccess };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
using cudaStream_t = struct CUstream_st*;
using cudaGraph_t = struct CUgraph_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);

struct Engine {
    bool begin_step();
    void write_keys_and_values();
    flexc::Lengths lengths();
    flexc::ForwardTensors tensors();
    std::span<const flexc::NamedTensor> buffers();
};

int report(std::string_view message);

int serve(Engine& engine, const flexc::Result<flexc::Kernel>& kernel,
          const flexc::Result<flexc::Plan>& plan, const flexc::Workspace& workspace,
          cudaStream_t stream) {
#include "capture_example.h"
    return 0;
}
