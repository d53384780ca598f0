// Lengths and pages of requests: from arrays, or lists of numbers, to the C interface.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "flexc/flexc_c.h"
#include "object.h"
#include "tensor.h"

namespace flexc::python {

// What a plan keeps of lengths besides their arrays: its sizes, and query_start.
using Paging = flexc_lengths;

// The arrays of one call: all in host memory, or all on a device. They live as long as this does.
class Lengths {
  public:
    explicit Lengths(PyObject* stream) : tensors_(stream) {}

    // A dict of arrays by the names of flexc_lengths, some of them None, for a kernel of this
    // device. false: there is an exception.
    bool read(PyObject* dict, std::int32_t device, std::int32_t device_index);
    // The same of one array by its name: contiguous i32. false: there is no such name.
    bool put(std::string_view name, const flexc_tensor& tensor);
    // The page table has a row for each request. false: there is an exception.
    bool check_table(std::int64_t batch) const;

    bool is_empty() const { return is_empty_; }
    bool is_on_device() const { return tensors_.device() == FLEXC_DEVICE_CUDA; }
    flexc_lengths on_host(const Paging& paging) const;
    flexc_length_tensors on_device() const;
    Tensors& tensors() { return tensors_; }

    // Number of requests, from cu_seqlens_q; -1 without it.
    std::int64_t requests() const;
    // Most of one request, and rows of packed tensors, from arrays in host memory.
    std::int64_t most_queries() const;
    std::int64_t most_keys(const Paging& paging) const;
    // Most pages of one request, from the shapes of the arrays.
    std::int64_t most_pages() const;
    std::int64_t query_rows() const;
    std::int64_t key_rows() const;

  private:
    enum Name : std::uint8_t {
#define FLEXC_LENGTH_ARRAY(name, dims) name,
#include "common/lengths.def"
        count
    };
    struct Numbers {
        flexc_tensor tensor = {};
        std::vector<std::int32_t> own; // of lists, and of arrays that are not contiguous i32
        const std::int32_t* data = nullptr;
        std::size_t count = 0;
        bool is_given = false;
    };
    bool read_list(std::size_t which, PyObject* list);
    bool read_array(std::size_t which, PyObject* array);

    Tensors tensors_;
    std::array<Numbers, Name::count> arrays_; // by name
    bool is_empty_ = true;
};

} // namespace flexc::python
