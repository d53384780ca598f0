// flexc's passes as functions that XLA's computations call.
#pragma once

#include "object.h"

namespace flexc::python {

// () -> ((name, platform, capsule), ...)
PyObject* jax_handlers(PyObject* module, PyObject* arguments);

} // namespace flexc::python
