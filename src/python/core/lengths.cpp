#include "lengths.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "error.h"

namespace flexc::python {

namespace {

struct Array {
    const char* name;
    const char* dims; // as errors show them
    const std::int32_t* flexc_lengths::* numbers;
    std::size_t flexc_lengths::* count;
    const flexc_tensor* flexc_length_tensors::* tensor;

    std::int32_t rank() const {
        return 1 + static_cast<std::int32_t>(std::ranges::count(std::string_view(dims), ','));
    }
};
constexpr Array kArrays[] = { // in the order of Lengths::Name
#define FLEXC_LENGTH_ARRAY(name, dims)                                                             \
    {#name, dims, &flexc_lengths::name, &flexc_lengths::name##_count, &flexc_length_tensors::name},
#include "common/lengths.def"
};

bool refuse(const std::string& message) {
    raise(FLEXC_ERROR_INVALID_OPTION, message);
    return false;
}

std::string shape_of(const flexc_tensor& tensor) {
    std::string text = "[";
    for (std::int32_t i = 0; i < tensor.rank; ++i)
        text += (i == 0 ? "" : ", ") + std::to_string(tensor.shape[i]);
    return text + "]";
}

bool is_list(PyObject* object) { return PyList_Check(object) != 0 || PyTuple_Check(object) != 0; }

bool fits(std::int64_t value) {
    return value >= std::numeric_limits<std::int32_t>::min() &&
           value <= std::numeric_limits<std::int32_t>::max();
}

bool append_number(const Array& array, std::int64_t value, std::vector<std::int32_t>& numbers) {
    if (!fits(value))
        return refuse(std::string(array.name) + ": " + std::to_string(value) +
                      " does not fit in 32 bits");
    numbers.push_back(static_cast<std::int32_t>(value));
    return true;
}

bool append_numbers(const Array& array, PyObject* list, std::vector<std::int32_t>& numbers) {
    const Py_ssize_t count = is_list(list) ? PySequence_Size(list) : -1;
    if (count < 0) return refuse(std::string(array.name) + ": expected a list of " + array.dims);
    for (Py_ssize_t i = 0; i < count; ++i) {
        const Object item = Object::take(PySequence_GetItem(list, i));
        const long long value = item ? PyLong_AsLongLong(item.get()) : -1;
        if (PyErr_Occurred() != nullptr) {
            PyErr_Clear();
            return refuse(std::string(array.name) + ": expected integers of 32 bits, " +
                          array.dims + ", and number " + std::to_string(i) + " is none");
        }
        if (!append_number(array, value, numbers)) return false;
    }
    return true;
}

std::int64_t element(const flexc_tensor& tensor, std::int64_t at) {
    const void* data = tensor.data != nullptr ? tensor.data : tensor.const_data;
    return tensor.dtype == FLEXC_I64 ? static_cast<const std::int64_t*>(data)[at]
                                     : static_cast<const std::int32_t*>(data)[at];
}

} // namespace

bool Lengths::read(PyObject* dict, std::int32_t device, std::int32_t device_index) {
    static_assert(std::size(kArrays) == Name::count);
    for (std::size_t i = 0; i < Name::count; ++i) {
        PyObject* given = PyDict_GetItemString(dict, kArrays[i].name);
        if (given == nullptr || given == Py_None) continue;
        if (!(is_list(given) ? read_list(i, given) : read_array(i, given))) return false;
        arrays_[i].is_given = true;
        is_empty_ = false;
        if (is_on_device() &&
            (device != FLEXC_DEVICE_CUDA || device_index != tensors_.device_index()))
            return refuse(std::string(kArrays[i].name) +
                          ": is on another device than the kernel; give it in the memory of the "
                          "kernel's device or of the host");
    }
    return true;
}

bool Lengths::put(std::string_view name, const flexc_tensor& tensor) {
    const auto* const known = std::ranges::find(kArrays, name, &Array::name);
    if (known == std::end(kArrays)) return false;
    Numbers& numbers = arrays_[static_cast<std::size_t>(known - kArrays)];
    numbers.tensor = tensor;
    numbers.data = static_cast<const std::int32_t*>(tensor.data);
    numbers.count = 1;
    for (std::int32_t i = 0; i < tensor.rank; ++i)
        numbers.count *= static_cast<std::size_t>(tensor.shape[i]);
    numbers.is_given = true;
    is_empty_ = false;
    return true;
}

bool Lengths::read_list(std::size_t which, PyObject* list) {
    const Array& array = kArrays[which];
    Numbers& numbers = arrays_[which];
    if (!tensors_.see_host(array.name)) return false;
    numbers.tensor.rank = array.rank();
    const Py_ssize_t rows = PySequence_Size(list);
    numbers.tensor.shape[0] = rows;
    if (array.rank() == 1) {
        if (!append_numbers(array, list, numbers.own)) return false;
    } else {
        // Rows of a table may end early: what is behind is no page.
        std::vector<std::vector<std::int32_t>> table(static_cast<std::size_t>(rows));
        std::size_t width = 0;
        for (Py_ssize_t i = 0; i < rows; ++i) {
            const Object row = Object::take(PySequence_GetItem(list, i));
            auto& into = table[static_cast<std::size_t>(i)];
            if (!row || !append_numbers(array, row.get(), into)) return false;
            width = std::max(width, into.size());
        }
        for (auto& row : table) {
            row.resize(width, -1);
            numbers.own.insert(numbers.own.end(), row.begin(), row.end());
        }
        numbers.tensor.shape[1] = static_cast<std::int64_t>(width);
    }
    numbers.data = numbers.own.data();
    numbers.count = numbers.own.size();
    return true;
}

bool Lengths::read_array(std::size_t which, PyObject* given) {
    const Array& array = kArrays[which];
    Numbers& numbers = arrays_[which];
    flexc_tensor& tensor = numbers.tensor;
    if (!tensors_.read(given, array.name, false, tensor)) return false;
    if (tensor.rank != array.rank())
        return refuse(std::string(array.name) + ": expected " + array.dims + ", got the shape " +
                      shape_of(tensor));
    numbers.count = 1;
    for (std::int32_t i = 0; i < tensor.rank; ++i)
        numbers.count *= static_cast<std::size_t>(tensor.shape[i]);
    if (is_on_device()) {
        if (tensor.dtype == FLEXC_I32) return true;
        return refuse(std::string(array.name) + ": expected i32, got " +
                      flexc_dtype_name(tensor.dtype) +
                      "; on a device the kernel reads it as it is");
    }
    if (tensor.dtype != FLEXC_I32 && tensor.dtype != FLEXC_I64)
        return refuse(std::string(array.name) + ": expected integers, i32 or i64, got " +
                      flexc_dtype_name(tensor.dtype));
    std::int64_t strides[2] = {1, 1};
    if (tensor.rank == 2) strides[0] = tensor.shape[1];
    const bool is_contiguous =
        tensor.has_strides == 0 || std::equal(strides, strides + tensor.rank, tensor.strides);
    if (tensor.dtype == FLEXC_I32 && is_contiguous) {
        numbers.data = static_cast<const std::int32_t*>(tensor.data != nullptr ? tensor.data
                                                                               : tensor.const_data);
        return true;
    }
    if (!is_contiguous) std::copy_n(tensor.strides, tensor.rank, strides);
    const std::int64_t columns = tensor.rank == 2 ? tensor.shape[1] : 1;
    numbers.own.reserve(numbers.count);
    for (std::int64_t row = 0; row < tensor.shape[0]; ++row)
        for (std::int64_t column = 0; column < columns; ++column)
            if (!append_number(array, element(tensor, row * strides[0] + column * strides[1]),
                               numbers.own))
                return false;
    numbers.data = numbers.own.data();
    return true;
}

bool Lengths::check_table(std::int64_t batch) const {
    const Numbers& table = arrays_[Name::page_table];
    if (!table.is_given || table.tensor.shape[0] == batch) return true;
    return refuse("page_table: has " + std::to_string(table.tensor.shape[0]) + " rows; there are " +
                  std::to_string(batch) + " requests");
}

flexc_lengths Lengths::on_host(const Paging& paging) const {
    flexc_lengths lengths = paging;
    for (std::size_t i = 0; i < Name::count; ++i) {
        lengths.*kArrays[i].numbers = arrays_[i].data;
        lengths.*kArrays[i].count = arrays_[i].count;
    }
    return lengths;
}

flexc_length_tensors Lengths::on_device() const {
    flexc_length_tensors tensors = {};
    tensors.struct_size = sizeof tensors;
    for (std::size_t i = 0; i < Name::count; ++i)
        if (arrays_[i].is_given) tensors.*kArrays[i].tensor = &arrays_[i].tensor;
    return tensors;
}

std::int64_t Lengths::requests() const {
    const Numbers& cu_seqlens = arrays_[Name::cu_seqlens_q];
    return static_cast<std::int64_t>(cu_seqlens.count) - 1;
}

namespace {

// Numbers that are not in order are refused later.
std::int64_t longest(const std::int32_t* cu_seqlens, std::size_t count) {
    std::int64_t most = 0;
    for (std::size_t i = 1; i < count; ++i)
        most = std::max(most, std::int64_t{cu_seqlens[i]} - cu_seqlens[i - 1]);
    return most;
}

std::int64_t largest(const std::int32_t* numbers, std::size_t count) {
    return count == 0 ? 0 : std::max(0, *std::max_element(numbers, numbers + count));
}

} // namespace

std::int64_t Lengths::most_queries() const {
    const Numbers &cu_seqlens = arrays_[Name::cu_seqlens_q], &used = arrays_[Name::seqused_q];
    return used.is_given ? largest(used.data, used.count)
                         : longest(cu_seqlens.data, cu_seqlens.count);
}

std::int64_t Lengths::most_keys(const Paging& paging) const {
    const Numbers &cu_seqlens = arrays_[Name::cu_seqlens_k], &used = arrays_[Name::seqused_k];
    if (used.is_given) return largest(used.data, used.count);
    if (cu_seqlens.is_given) return longest(cu_seqlens.data, cu_seqlens.count);
    const Numbers &indptr = arrays_[Name::page_indptr], &last = arrays_[Name::last_page_len];
    std::int64_t most = 0;
    for (std::size_t i = 1; i < std::min(indptr.count, last.count + 1); ++i) {
        const std::int64_t pages = std::int64_t{indptr.data[i]} - indptr.data[i - 1];
        if (pages > 0) most = std::max(most, (pages - 1) * paging.page_size + last.data[i - 1]);
    }
    return most;
}

std::int64_t Lengths::most_pages() const {
    const Numbers& table = arrays_[Name::page_table];
    return table.is_given ? table.tensor.shape[1]
                          : static_cast<std::int64_t>(arrays_[Name::page_indices].count);
}

std::int64_t Lengths::query_rows() const {
    const Numbers& cu_seqlens = arrays_[Name::cu_seqlens_q];
    return cu_seqlens.count == 0 ? 0 : cu_seqlens.data[cu_seqlens.count - 1];
}

std::int64_t Lengths::key_rows() const {
    const Numbers& cu_seqlens = arrays_[Name::cu_seqlens_k];
    return cu_seqlens.count == 0 ? 0 : cu_seqlens.data[cu_seqlens.count - 1];
}

} // namespace flexc::python
