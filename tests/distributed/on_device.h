// Tensors of tests where a kernel finds them: in host memory, or copied to a GPU and back.
#pragma once

#include <memory>
#include <vector>

#include "flexc/flexc.h"

namespace flexc::test {

class OnDevice {
  public:
    explicit OnDevice(Device device);
    OnDevice(const OnDevice&) = delete;
    OnDevice& operator=(const OnDevice&) = delete;
    ~OnDevice();

    // Of a tensor without gaps, whose memory outlives this; nothing stays nothing.
    TensorView of(const TensorView& host);
    std::vector<NamedTensor> of(std::vector<NamedTensor> host);
    Stream stream() const { return stream_; }
    // When the stream's work is done, what kernels wrote to a tensor of this kind is in host memory
    // too.
    void take_back();

  private:
    struct Copy {
        void* host = nullptr;
        DeviceMemory memory;
        bool is_read_only = false;
    };
    Device device_;
    Stream stream_;
    std::vector<Copy> copies_;
};

// FLEXC_TEST_DEVICE=cuda names it, or it is there.
bool has_gpu();

} // namespace flexc::test
