// Values of a plan that are no part of its program, from the dict of its options.
#pragma once

#include <string>
#include <vector>

#include "flexc/flexc_c.h"
#include "object.h"

namespace flexc::python {

// These leave what is absent, or None, as it was. false: there is an exception.
inline bool read_int64(PyObject* dict, const char* name, std::int64_t& value) {
    PyObject* object = PyDict_GetItemString(dict, name);
    if (object == nullptr || object == Py_None) return true;
    value = PyLong_AsLongLong(object);
    return PyErr_Occurred() == nullptr;
}

inline bool read_scale(PyObject* dict, std::int32_t& has_scale, double& scale) {
    PyObject* object = PyDict_GetItemString(dict, "scale");
    if (object == nullptr || object == Py_None) return true;
    has_scale = 1;
    scale = PyFloat_AsDouble(object);
    return PyErr_Occurred() == nullptr;
}

// Numbers by the names of a program's params. They live as long as this does.
class ParamValues {
  public:
    bool read(PyObject* options) {
        PyObject* params = PyDict_GetItemString(options, "params");
        if (params == nullptr || params == Py_None) return true;
        PyObject *key = nullptr, *value = nullptr;
        Py_ssize_t at = 0;
        names_.reserve(static_cast<std::size_t>(PyDict_Size(params)));
        while (PyDict_Next(params, &at, &key, &value) != 0) {
            std::string& name = names_.emplace_back();
            if (!read_text(key, name)) return false;
            const double number = PyFloat_AsDouble(value);
            if (PyErr_Occurred() != nullptr) return false;
            values_.push_back({sizeof(flexc_param_value), 0, nullptr, number});
        }
        for (std::size_t i = 0; i < values_.size(); ++i)
            values_[i].name = names_[i].c_str();
        return true;
    }
    const flexc_param_value* data() const { return values_.data(); }
    std::size_t size() const { return values_.size(); }

  private:
    std::vector<std::string> names_;
    std::vector<flexc_param_value> values_;
};

} // namespace flexc::python
