// exit() runs NVRTC's finalizers, under which threads inside NVRTC crash: it waits until they left.
#pragma once

namespace flexc::cuda {

// Lives while its thread may be inside NVRTC.
class NvrtcGuard {
  public:
    NvrtcGuard();
    ~NvrtcGuard();
    NvrtcGuard(const NvrtcGuard&) = delete;
    NvrtcGuard& operator=(const NvrtcGuard&) = delete;
};

// Whether exit() waits: threads inside should leave, and those with a new guard should not go in.
bool exit_has_begun();

// exit() waits before it runs the finalizers that are registered by now, and after those that come
// later: for NVRTC goes on registering some during its first compile.
void register_exit_handler();

} // namespace flexc::cuda
