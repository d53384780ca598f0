// Where XLA calls a function: on the CPU, or on a GPU in a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "flexc/flexc_c.h"
#include "xla.h"

namespace flexc::python {

class Place {
  public:
    Place() = default; // the CPU

    // Finds the GPU of a call. Returns "" or what is wrong.
    std::string find_gpu(const xla::Call& call);

    bool is_gpu() const { return device_ == FLEXC_DEVICE_CUDA; }
    std::int32_t device() const { return device_; }
    std::int32_t index() const { return index_; }
    void* stream() const { return stream_; }

  private:
    friend class Scratch;
    std::string text_of(xla::Error* error) const;

    const xla::Call* call_ = nullptr;
    std::int32_t device_ = FLEXC_DEVICE_CPU;
    std::int32_t index_ = 0;
    void* stream_ = nullptr;
};

// Memory of one call. On a GPU it is XLA's, which gives it to others in the order of the stream:
// what was launched may still use it when this ends.
class Scratch {
  public:
    explicit Scratch(const Place& place) : place_(place) {}
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    // "" or what is wrong. Once.
    std::string take(std::size_t bytes);
    const flexc_workspace* get() const { return &workspace_; }

  private:
    std::string take_of_xla(std::size_t bytes);

    const Place& place_;
    void* memory_ = nullptr;
    std::size_t bytes_ = 0; // of it
    flexc_workspace workspace_ = {sizeof(flexc_workspace), 0, nullptr, 0};
};

} // namespace flexc::python
