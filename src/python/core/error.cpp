#include "error.h"

namespace flexc::python {

namespace {

PyObject* factory = nullptr;

} // namespace

void set_error_factory(PyObject* given) {
    Py_XINCREF(given);
    std::swap(factory, given);
    Py_XDECREF(given);
}

PyObject* raise(flexc_status status, const std::string& message) {
    const char* name = flexc_status_name(status);
    const Object made =
        Object::take(factory == nullptr
                         ? nullptr
                         : PyObject_CallFunction(factory, "ss", name == nullptr ? "internal" : name,
                                                 message.c_str()));
    if (made)
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made.get())), made.get());
    else if (!PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, message.c_str());
    return nullptr;
}

PyObject* raise(flexc_error* error) {
    const std::string message = flexc_error_message(error);
    const flexc_status status = flexc_error_status(error);
    flexc_error_free(error);
    return raise(status == FLEXC_OK ? FLEXC_ERROR_INTERNAL : status, message);
}

} // namespace flexc::python
