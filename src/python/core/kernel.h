// The types Kernel and Plan of the module.
#pragma once

#include "flexc/flexc_c.h"
#include "object.h"
#include "tensor.h"

namespace flexc::python {

// Adds them to the module, and its function `compile`. false: there is an exception.
bool add_kernel_types(PyObject* module);

// compile(text, options) -> (Kernel, messages)
PyObject* compile(PyObject* module, PyObject* arguments);

// A Plan's forward of q, k and v that were read; lse may be None. false: there is an exception.
bool forward(PyObject* plan, const flexc_tensor* inputs, PyObject* out, PyObject* lse,
             PyObject* buffers, Tensors& tensors);

} // namespace flexc::python
