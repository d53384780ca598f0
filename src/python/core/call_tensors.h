// The tensors of one call: those of a pass, and buffers by their names.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "flexc/flexc_c.h"
#include "object.h"
#include "tensor.h"

namespace flexc::python {

inline bool read_names(PyObject* tuple, std::vector<std::string>& names) {
    const Py_ssize_t count = PyTuple_Size(tuple);
    for (Py_ssize_t i = 0; i < count; ++i)
        if (!read_text(PyTuple_GetItem(tuple, i), names.emplace_back())) return false;
    return count >= 0;
}

// Tensors by name, for the buffers or their gradients of one call.
class NamedTensors {
  public:
    bool read(Tensors& tensors, PyObject* tuple, const std::vector<std::string>& names,
              bool written) {
        const Py_ssize_t count = PyTuple_Size(tuple);
        if (count < 0) return false;
        if (static_cast<std::size_t>(count) != names.size()) {
            PyErr_Format(PyExc_ValueError, "%zd buffers were given, the plan has %zd", count,
                         static_cast<Py_ssize_t>(names.size()));
            return false;
        }
        tensors_.resize(names.size());
        named_.reserve(names.size());
        for (std::size_t i = 0; i < names.size(); ++i) {
            PyObject* array = PyTuple_GetItem(tuple, static_cast<Py_ssize_t>(i));
            if (!tensors.read(array, names[i].c_str(), written, tensors_[i])) return false;
            if (array == Py_None) continue;
            named_.push_back({sizeof(flexc_named_tensor), 0, names[i].c_str(), &tensors_[i]});
        }
        return true;
    }
    const flexc_named_tensor* data() const { return named_.data(); }
    std::size_t size() const { return named_.size(); }

  private:
    std::vector<flexc_tensor> tensors_;
    std::vector<flexc_named_tensor> named_;
};

// The tensors of a pass, in the order of the names; those from `written` on are results.
template <std::size_t size> class PassTensors {
  public:
    static constexpr std::size_t count = size;
    bool read(Tensors& tensors, PyObject* tuple, const std::array<const char*, count>& names,
              std::size_t written) {
        if (PyTuple_Size(tuple) != static_cast<Py_ssize_t>(count)) {
            if (PyErr_Occurred() == nullptr)
                PyErr_Format(PyExc_ValueError, "a pass has %zd tensors",
                             static_cast<Py_ssize_t>(count));
            return false;
        }
        for (std::size_t i = 0; i < count; ++i)
            if (!tensors.read(PyTuple_GetItem(tuple, static_cast<Py_ssize_t>(i)), names[i],
                              i >= written, all_[i]))
                return false;
        return true;
    }
    const flexc_tensor* operator[](std::size_t i) const { return &all_[i]; }

  private:
    std::array<flexc_tensor, count> all_;
};

class Forward : public PassTensors<5> {
  public:
    bool read(Tensors& tensors, PyObject* tuple) {
        if (!PassTensors::read(tensors, tuple, {"q", "k", "v", "o", "lse"}, 3)) return false;
        const PassTensors& t = *this;
        struct_ = {sizeof struct_, 0, t[0], t[1], t[2], t[3], t[4]};
        return true;
    }
    // (k_scale, v_scale, max_scores), each may be None.
    bool read_optional(Tensors& tensors, PyObject* tuple) {
        if (!optional_.read(tensors, tuple, {"k_scale", "v_scale", "max_scores"}, 2)) return false;
        struct_.k_scale = optional_[0];
        struct_.v_scale = optional_[1];
        struct_.max_scores = optional_[2];
        return true;
    }
    const flexc_forward_tensors* get() const { return &struct_; }

  private:
    PassTensors<3> optional_;
    flexc_forward_tensors struct_ = {};
};

class Backward : public PassTensors<10> {
  public:
    bool read(Tensors& tensors, PyObject* tuple) {
        if (!PassTensors::read(tensors, tuple,
                               {"q", "k", "v", "o", "lse", "d_out", "d_lse", "dq", "dk", "dv"}, 7))
            return false;
        const PassTensors& t = *this;
        struct_ = {sizeof struct_, 0, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9]};
        return true;
    }
    const flexc_backward_tensors* get() const { return &struct_; }

  private:
    flexc_backward_tensors struct_ = {};
};

} // namespace flexc::python
