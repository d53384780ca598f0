// exit() runs NVRTC's finalizers, which would crash threads inside NVRTC: it waits until they have
// left.
#pragma once

namespace flexc::cuda {

// Exists while its thread may be inside NVRTC.
class NvrtcGuard {
  public:
    NvrtcGuard();
    ~NvrtcGuard();
    NvrtcGuard(const NvrtcGuard&) = delete;
    NvrtcGuard& operator=(const NvrtcGuard&) = delete;
};

// Whether exit() is waiting. Threads inside NVRTC should then leave, and those with a new guard
// should not enter.
bool exit_has_begun();

// Makes exit() wait before it runs the finalizers registered so far. Guards call it again, because
// NVRTC registers more finalizers during its first compile, and exit() runs later ones first.
void register_exit_handler();

} // namespace flexc::cuda
