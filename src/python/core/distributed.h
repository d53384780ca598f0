// The types DistributedKernel and DistributedPlan of the module.
#pragma once

#include "object.h"

namespace flexc::python {

// false: there is an exception.
bool add_distributed_types(PyObject* module);

// compile_distributed(text, options, sharded) -> (DistributedKernel, messages)
// sharded: (buffer, dim) for each.
PyObject* compile_distributed(PyObject* module, PyObject* arguments);

} // namespace flexc::python
