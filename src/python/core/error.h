// Errors of the C interface as exceptions of flexc.errors.
#pragma once

#include "flexc/flexc_c.h"
#include "object.h"

namespace flexc::python {

// The function of flexc.errors that makes an exception of a status' name and a message.
void set_error_factory(PyObject* factory);

// Sets the exception and frees the error; nullptr, for `return`.
PyObject* raise(flexc_error* error);
PyObject* raise(flexc_status status, const std::string& message);

} // namespace flexc::python
