// Arrays of any library as tensors of the C interface, without a copy.
#pragma once

#include <vector>

#include "flexc/flexc_c.h"
#include "object.h"

namespace flexc::python {

namespace dlpack {
struct Exchange;
}

// The stream in which an array library works on a CUDA device. false: there is an exception.
bool current_stream(const dlpack::Exchange& library, std::int32_t device_index, void*& handle);

// Views of the arrays that a call was given, and the device where they are.
class Tensors {
  public:
    explicit Tensors(PyObject* stream) : stream_(stream) {}

    // None gives a tensor without data. false: there is an exception.
    bool read(PyObject* array, const char* name, bool written, flexc_tensor& tensor);

    // The stream that was given, else the one that the arrays' library works in. Where an array
    // without a stream is on a GPU, its library was asked to be done with it for this stream.
    bool stream(void*& handle);

    // Whose numbers are in host memory and no array.
    bool see_host(const char* name);

    // The exchange API of the first array whose library has one, else null. It lives as long as the
    // process.
    const dlpack::Exchange* library() const { return library_; }

    // FLEXC_DEVICE_AUTOMATIC before the first array.
    std::int32_t device() const { return device_; }
    std::int32_t device_index() const { return device_index_; }

  private:
    bool read_exchange(PyObject* array, const char* name, flexc_tensor& tensor, bool& done);
    bool read_interface(PyObject* array, const char* name, bool written, flexc_tensor& tensor,
                        bool& done);
    bool read_capsule(PyObject* array, const char* name, bool written, flexc_tensor& tensor);
    bool see_device(const char* name, std::int32_t type, std::int32_t id);

    PyObject* stream_; // borrowed: an integer, or None
    const dlpack::Exchange* library_ = nullptr;
    void* found_stream_ = nullptr;
    bool has_found_stream_ = false;
    std::int32_t device_ = FLEXC_DEVICE_AUTOMATIC;
    std::int32_t device_index_ = 0;
    std::vector<Object> held_;
};

} // namespace flexc::python
