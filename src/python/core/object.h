// Python's objects with owners, in the limited API.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>
#include <utility>

#include "take_lock.h"

namespace flexc::python {

// One reference; empty if a call of Python failed and set an exception.
class Object {
  public:
    Object() = default;
    static Object take(PyObject* owned) { return Object(owned); }
    static Object share(PyObject* borrowed) {
        Py_XINCREF(borrowed);
        return Object(borrowed);
    }
    Object(Object&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Object& operator=(Object&& other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;
    ~Object() { Py_XDECREF(object_); }

    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

  private:
    explicit Object(PyObject* object) : object_(object) {}
    PyObject* object_ = nullptr;
};

// Other threads run Python meanwhile.
class WithoutLock {
  public:
    WithoutLock() : state_(PyEval_SaveThread()) {}
    ~WithoutLock() { flexc_take_lock(state_); }
    WithoutLock(const WithoutLock&) = delete;
    WithoutLock& operator=(const WithoutLock&) = delete;

  private:
    PyThreadState* state_;
};

inline Object text_object(const char* text) {
    return Object::take(PyUnicode_FromString(text == nullptr ? "" : text));
}

// false: there is an exception.
inline bool read_text(PyObject* object, std::string& text) {
    const Object bytes = Object::take(PyUnicode_AsUTF8String(object));
    if (!bytes) return false;
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(bytes.get(), &data, &size) != 0) return false;
    text.assign(data, static_cast<std::size_t>(size));
    if (text.find('\0') == std::string::npos) return true;
    PyErr_SetString(PyExc_ValueError, "the text has a zero byte");
    return false;
}

inline bool put(PyObject* dict, const char* name, Object value) {
    return value && PyDict_SetItemString(dict, name, value.get()) == 0;
}

template <typename Function> PyCFunction method(Function function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

} // namespace flexc::python
