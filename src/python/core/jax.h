// flexc's passes as functions that XLA's computations call.
#pragma once

#include "object.h"

namespace flexc::python {

PyObject* jax_handlers(PyObject* module,
                       PyObject* arguments); // () -> (forward, backward), capsules

} // namespace flexc::python
