// Results over disjoint keys of the same queries become one.
#pragma once

#include "object.h"

namespace flexc::python {

// merge_states(((o, lse), ...), o, lse or None)
PyObject* merge_states(PyObject* module, PyObject* arguments);

} // namespace flexc::python
